package redisnode

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/memory"
)

// load loads a script into the process that has just reported that it does not know the script.
// It returns that process, or another one if the server was restarted.
//
// It first asks which process serves, so that a text reaches only its own process, unless the
// server restarts in between.
func (f *router) load(ctx context.Context, p *process, o lua.Op, q *quorum.Info, key string, asked bool) (*process, error) {
	slot := f.slot(key)
	done, err := f.enter(ctx, flight{slot, o})
	if err != nil {
		return nil, err
	}
	if done == nil { // another caller has just done it
		return f.slots[slot].Load(), nil
	}
	defer done()
	if !asked {
		now, err := f.ask(ctx, key)
		if err != nil || now != p {
			return now, err
		}
	}
	// The call may be under way when the operation has ended, and so has nothing of it.
	c, mode := &Call{Keys: []string{key}, Text: p.scripts[o].Text, Args: []string{"handshake"}}, ""
	if q != nil {
		if mode, err = f.prepare(ctx, p, q); err != nil {
			return nil, err
		}
		deadline, _ := ctx.Deadline()
		c = f.guard.handshake(p.guard(f.guard.space, q.Proposal()), o, memory.HandshakeArgs(q, mode, p.clock.at(deadline)))
	}
	now, err := f.meet(ctx, p.lane, c, key, 1)
	if err != nil || q == nil || now != p {
		return now, err
	}
	return p, f.guard.readHandshake(ctx, p, q, c.Reply, mode)
}

// handshake makes a handshake with the text of a script.
func (g *guard) handshake(with *guarded, o lua.Op, args []string) *Call {
	return &Call{Behind: g.handshakeKey, Keys: []string{g.meta}, Text: with.scripts[o].Text, Args: args}
}

// prepare prepares a handshake and returns its mode.
func (f *router) prepare(ctx context.Context, p *process, q *quorum.Info) (mode string, err error) {
	g := f.guard
	if p.run == "" {
		return "", &driver.RefusedError{Reason: g.cfg.Addr + ": " + needInfo}
	}
	if g.cfg.Durable {
		if err := g.durable(ctx); err != nil {
			return "", err
		}
		mode = "durable"
	}
	if g.cfg.Bootstrap && q == g.lone && !p.guard(g.space, q.Proposal()).ready.Load() { // otherwise it has had locks of this key space
		r, err := f.look(ctx)
		if err != nil {
			return "", err
		}
		if r.Memory <= quorum.MemoryNew {
			mode = memory.Modes[quorum.StateNew]
		}
	}
	return mode, nil
}

// review checks in the background, every half guard while the server gets bids, whether it
// would still pass a first handshake: its settings may now let it evict keys. If not, a
// handshake refuses the next bid, with the reason.
func (f *router) review(p *process, g *guarded, q *quorum.Info) {
	now := time.Now().UnixNano()
	if age := time.Duration(now - g.reviewed.Load()); age >= 0 && age < g.terms.Guard/2 || !g.reviewing.CompareAndSwap(false, true) {
		return
	}
	g.reviewed.Store(now)
	c := f.guard.handshake(g, lua.Acquire, memory.HandshakeArgs(q, "", 0)) // now: q is the caller's
	f.guard.wg.Go(func() {
		defer g.reviewing.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), f.guard.cfg.CallTimeout)
		defer cancel()
		_, err := f.meet(ctx, p.lane, c, f.guard.meta, 1)
		var refusal ServerError
		if !errors.As(err, &refusal) || !strings.HasPrefix(string(refusal), "GUARD ") {
			return // the next bid finds out which process serves now, and whether it answers
		}
		why := f.guard.refusal(string(refusal))
		f.guard.cfg.Notify(driver.Notice{Kind: quorum.NoticeEviction, Node: f.guard.cfg.Addr, Err: why, Detail: "it does not vote any longer: " + why.Error()})
		g.ready.Store(false)
	})
}

// look asks the server for its memory, and changes nothing.
func (f *router) look(ctx context.Context) (*quorum.MemoryReport, error) {
	r, err := f.lookAtMemory(ctx)
	if err != nil || r.Memory == quorum.MemoryKept || !f.guard.isMarked(ctx) {
		return r, err
	}
	// There is a marker, so the server once had a memory. Look again: if the memory is still
	// missing it was removed, and not just about to be written by another client.
	if r, err = f.lookAtMemory(ctx); err == nil && r.Memory != quorum.MemoryKept {
		r.Memory = quorum.MemoryFlushed
	}
	return r, err
}

// lookAtMemory is a look that ignores the marker.
func (f *router) lookAtMemory(ctx context.Context) (*quorum.MemoryReport, error) {
	c := &Call{Text: lua.Look, Keys: []string{f.guard.meta}}
	p, err := f.meet(ctx, f.hello, c, f.guard.meta, 0)
	if err != nil {
		return nil, err
	}
	us, _ := number(c.Reply, 1)
	meta, ok := text(c.Reply, 2)
	if !ok {
		return nil, NotSent(errGarbled)
	}
	r := &quorum.MemoryReport{Memory: quorum.MemoryNew, Clock: time.UnixMicro(us), Server: p.run}
	if meta != "" {
		r.Memory = quorum.MemoryKept
		memory.Report(r, meta)
	}
	return r, nil
}

// seenFor is how long a server's report of its memory stays valid: another client may give it a
// memory, which may then be removed.
const seenFor = 5 * time.Second

// bootstrap makes a handshake in this mode with the observed process.
func (f *router) bootstrap(ctx context.Context, q *quorum.Info, mode string, seen *quorum.MemoryReport) error {
	p, _, err := f.process(ctx, f.guard.meta)
	if err != nil {
		return err
	}
	if p.run == "" {
		return &driver.RefusedError{Reason: f.guard.cfg.Addr + ": " + needInfo}
	}
	if seen.Server != p.run {
		return errChanged
	}
	args := memory.HandshakeArgs(q, mode, seen.Clock.Add(seenFor).UnixMicro())
	for range 3 {
		to := p.guard(f.guard.space, q.Proposal())
		if mode == memory.Modes[quorum.StateChanged] {
			to = p.adopt(f.guard.space, *q.Proposal())
		}
		c := f.guard.handshake(to, lua.Acquire, args)
		now, err := f.meet(ctx, p.lane, c, f.guard.meta, 1)
		if err != nil {
			return err
		}
		code, _ := number(c.Reply, 0)
		if now != p || code == 3 {
			return errChanged
		}
		if err := f.guard.readHandshake(ctx, p, q, c.Reply, ""); err != nil || code != 4 || mode != memory.Modes[quorum.StateNew] {
			return err
		}
	}
	return errChanged
}

// Bootstrap reports the server's memory, and makes b's statement: see quorum.Admin.
func (n *Node) Bootstrap(ctx context.Context, b *quorum.Bootstrap) (*quorum.MemoryReport, error) {
	if n.closed.Load() {
		return nil, driver.ErrClosed
	}
	q := n.guard.of(b.Quorum)
	switch {
	case q == nil:
		return &quorum.MemoryReport{}, nil
	case n.cfg.Cluster:
		return nil, n.checkOwn(&driver.Request{Quorum: q})
	case q == n.guard.lone && b.Statement != quorum.StateNew:
		return nil, driver.Invalid("Statement", "is for the nodes of a quorum, and this is a lone server")
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.CallTimeout)
	defer cancel()
	r, err := n.router.look(ctx)
	if err == nil && !b.DryRun {
		mode, seen := memory.Modes[b.Statement], r
		if b.Statement == quorum.StateNew && b.Observed != nil {
			seen = b.Observed
		}
		if mode == "" {
			return r, driver.Invalid("Statement", "%d is unknown", b.Statement)
		}
		if r.Memory == quorum.MemoryFlushed && seen.Memory < r.Memory {
			return r, n.explain("", errChanged) // it has given locks since, and was made to forget them
		}
		err = n.router.bootstrap(ctx, q, mode, seen)
	}
	if err != nil {
		return nil, n.explain("", err)
	}
	return r, nil
}
