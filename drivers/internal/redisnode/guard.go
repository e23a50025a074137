package redisnode

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// The restart guard keeps a server that may have forgotten locks out of the vote until
// all of them have ended. lua/handshake.lua and lua/guard.lua are the two halves of it
// on the server; here is when they are called, and what their answers mean.

// DefaultAllowance is how far a lone instance's clock may be set back.
const DefaultAllowance = 100 * time.Millisecond

// marker is a script that does nothing but be there: it outlives FLUSHALL, so that a
// server which was emptied is not taken for one that is new. It is the same in every
// release, and one for each space of keys: another application's locks say nothing of
// what this one's server has forgotten.
func marker(space string) script { return newScript("return 'dlock-used' -- " + space) }

// guard is the restart guard of a node.
type guard struct {
	cfg   *Config
	meta  string // the name of what the server remembers
	shake string // the name of what a handshake writes first: see Call
	space string // which keys that is about, for the texts of scripts
	mark  script
	lone  *driver.Quorum // of a lone instance; nil: there is none
	wg    *tracker
}

func newGuard(cfg *Config, wg *tracker) *guard {
	g := &guard{
		cfg:   cfg,
		wg:    wg,
		meta:  cfg.Prefix + layout + "meta",
		shake: cfg.Prefix + layout + "shake",
		space: fmt.Sprintf("db %d prefix %x", cfg.DB, cfg.Prefix),
	}
	g.mark = marker(g.space)
	if cfg.Guard > 0 {
		g.lone = &driver.Quorum{N: 1, Guard: cfg.Guard, Allowance: DefaultAllowance}
	}
	return g
}

func checkGuard(cfg *Config) error {
	switch {
	case cfg.Guard < 0:
		return driver.Invalid("RestartGuard", "%v is negative", cfg.Guard)
	case cfg.Guard > 0 && cfg.Guard < minTTL:
		return driver.Invalid("RestartGuard", "%v is under the least TTL, %v", cfg.Guard, minTTL)
	case cfg.Guard > 0 && cfg.Cluster:
		return driver.Invalid("RestartGuard", "is not for a Cluster, whose shards restart one by one")
	case cfg.Durable && cfg.Failover:
		return driver.Invalid("Durable", "is for one server: a failover may lose what was acknowledged, whatever the server does")
	case cfg.Guard == 0 && (cfg.Bootstrap || cfg.StrictGuard):
		return driver.Invalid("Bootstrap", "and StrictGuard are for a lone instance with a restart guard; a quorum has its own")
	}
	return nil
}

// of returns what a request asks of the guard: that of its quorum, or of a lone
// instance; nil where there is none.
func (g *guard) of(q *driver.Quorum) *driver.Quorum {
	switch {
	case q == nil:
		return g.lone
	case q.Guard > 0:
		return q
	}
	return nil
}

// check refuses what the guard cannot stand for, before any I/O.
func (g *guard) check(req *driver.Request) error {
	q := g.of(req.Quorum)
	switch {
	case q == nil:
		return nil
	case req.TTL > q.Guard:
		return &driver.RefusedError{Reason: fmt.Sprintf("TTL %v is over the restart guard, %v", req.TTL, q.Guard)}
	case g.cfg.Cluster:
		return &driver.RefusedError{Reason: g.cfg.Addr + ": a Cluster cannot have a restart guard, since its shards restart one by one: restart_guard=off"}
	}
	return nil
}

// guarded is what one process knows of the guard of one quorum.
type guarded struct {
	n       int
	scripts [ops]script
	span    atomic.Int64 // the guard that it is known to keep, in µs; zero: none yet
	kept    atomic.Int64 // that which it has said to keep, before the marker is there as well
	told    atomic.Int64 // until when it does not vote, as was told
}

// guard returns the scripts of p for a quorum of n nodes.
func (p *process) guard(space string, n int) *guarded {
	if known := p.guarded.Load(); known != nil && known.n == n {
		return known
	}
	g := &guarded{n: n, scripts: bindGuarded(p.run, space, n)}
	p.guarded.Store(g)
	return g
}

// sha returns the script to call; "" where a handshake has to come first.
func (p *process) sha(o op, q *driver.Quorum) string {
	if q == nil {
		return p.scripts[o].sha
	}
	if g := p.guarded.Load(); g != nil && g.n == q.N && g.span.Load() >= span(q) {
		return g.scripts[o].sha
	}
	return ""
}

// unmarked returns what is known of a server after a handshake that suits q, where only the
// marker is missing: time ran out before it was left. Otherwise nil.
func (p *process) unmarked(q *driver.Quorum) *guarded {
	if g := p.guarded.Load(); g != nil && g.n == q.N && g.span.Load() < span(q) && g.kept.Load() >= span(q) {
		return g
	}
	return nil
}

// span is how long the server does not vote, in µs: the guard, by a clock that may be a
// hundredth faster than the holders', and twice what may be wrong with it.
func span(q *driver.Quorum) int64 {
	return int64((q.Guard + q.Guard/100 + 2*q.Allowance) / time.Microsecond)
}

// handshakeArgs are those of a handshake; until is the instant of the server's clock
// until when it may be taken for new.
func handshakeArgs(q *driver.Quorum, mode string, until int64) []string {
	others := int64(0)
	if q.N > 1 {
		others = -1
		if q.OtherClocks != nil {
			if t := q.OtherClocks(); !t.IsZero() {
				others = t.UnixMicro()
			}
		}
	}
	i := func(n int64) string { return strconv.FormatInt(n, 10) }
	return []string{"handshake", i(int64(q.N)), i(span(q)), i(int64(q.Allowance / time.Microsecond)), i(others), mode, i(until)}
}

// stale reports whether the script refused because the process of the last handshake
// was another one, or the server has forgotten it.
func (a *answer) stale() bool { code, _ := number(a.reply, 0); return code == -3 }

// quarantined reports whether the server does not vote yet.
func (a *answer) quarantined() bool { code, _ := number(a.reply, 0); return code == -4 }

// pending is the end of a quarantine that has not begun, since the other nodes' clocks
// were not known.
const pending = 9007199254740991

// overlong reports whether a quarantine can be counted anew with profit: it takes longer
// than the guard, because a clock was wrong or the others' were not known.
func (p *process) overlong(a *answer, q *driver.Quorum) bool {
	till, _ := number(a.reply, 1)
	now, _ := number(a.reply, 2)
	if q.N > 1 && (q.OtherClocks == nil || q.OtherClocks().IsZero()) {
		return false
	}
	kept := int64(0)
	if g := p.guarded.Load(); g != nil {
		kept = g.span.Load()
	}
	return till-now > max(kept, span(q))+int64(q.Allowance/time.Microsecond)
}

// prepare does what comes before a handshake, and returns its mode; what says why a lone
// instance is taken for new.
func (g *guard) prepare(ctx context.Context, f *fleet, p *process, q *driver.Quorum) (mode, what string, err error) {
	if p.run == "" {
		return "", "", &driver.RefusedError{Reason: g.cfg.Addr + ": " + needInfo}
	}
	if g.cfg.Durable {
		if err := g.durable(ctx); err != nil {
			return "", "", err
		}
		mode = "durable"
	}
	if q == g.lone && p.guard(g.space, q.N).span.Load() == 0 { // else it has kept our own locks
		r, err := g.look(ctx, f, q)
		if err != nil {
			return "", "", err
		}
		if r.Memory == driver.MemoryUnused && !g.cfg.StrictGuard || r.Memory <= driver.MemoryNew && g.cfg.Bootstrap {
			return "bootstrap", "the server is " + r.Memory.String() + ": it votes at once", nil
		}
	}
	return mode, "", nil
}

const needInfo = "the restart guard has to know the server's run_id: allow the command INFO, or restart_guard=off"

// leaveMark leaves the marker on the server: after a handshake, so that no other client
// takes a server for emptied that is only new, and before the first vote. By EVAL where
// SCRIPT is not allowed, though the server may forget it then among many others.
// Each handshake leaves it, since SCRIPT FLUSH takes it away and leads to one.
func (g *guard) leaveMark(ctx context.Context) error {
	err := g.cfg.Client.Each(ctx, func(ctx context.Context, s Server) error {
		_, err := s.Do(ctx, "SCRIPT", "LOAD", g.mark.text)
		var refusal ServerError
		if errors.As(err, &refusal) {
			_, err = s.Do(ctx, "EVAL", g.mark.text, "0")
		}
		return err
	})
	if err != nil {
		return before(err)
	}
	return nil
}

// isMarked reports whether this process of the server has ever kept locks under a guard;
// also where it cannot be told.
func (g *guard) isMarked(ctx context.Context) bool {
	found := false
	err := g.cfg.Client.Each(ctx, func(ctx context.Context, s Server) error {
		_, err := s.Do(ctx, "EVALSHA", g.mark.sha, "0")
		if isCode(err, "NOSCRIPT") {
			return nil
		}
		found = found || err == nil
		return err
	})
	return found || err != nil
}

// durable refuses if the server says that it may forget what it has acknowledged.
func (g *guard) durable(ctx context.Context) error {
	return g.cfg.Client.Each(ctx, func(ctx context.Context, s Server) error {
		for _, c := range [][2]string{{"appendonly", "yes"}, {"appendfsync", "always"}} {
			reply, err := s.Do(ctx, "CONFIG", "GET", c[0])
			var refusal ServerError
			if errors.As(err, &refusal) {
				return nil // it is believed
			}
			if err != nil {
				return &notSent{err}
			}
			if value, ok := configValue(reply); ok && value != c[1] {
				return &driver.RefusedError{Reason: fmt.Sprintf("%s: durable=true needs %s %s, and it is %s", s.Addr(), c[0], c[1], value)}
			}
		}
		return nil
	})
}

// welcome says that a lone instance was taken for new, if the handshake c did so.
func (g *guard) welcome(c *Call, what string) {
	now, _ := number(c.Reply, 2)
	if code, _ := number(c.Reply, 0); code == 1 {
		if till, _ := number(c.Reply, 3); till <= now {
			g.cfg.Event(driver.Notice{Kind: driver.NoticeBootstrapped, Node: g.cfg.Addr, Detail: what})
		}
	}
}

// heed reads a handshake's reply: {code, run_id, TIME, till, guard, why}.
func (g *guard) heed(ctx context.Context, p *process, q *driver.Quorum, reply []any) error {
	code, _ := number(reply, 0)
	now, _ := number(reply, 2)
	till, _ := number(reply, 3)
	kept, ok := number(reply, 4)
	switch {
	case !ok:
		return &notSent{errors.New("the server answers a handshake in an unknown way")}
	case code == 3:
		return nil // once more
	case code == 2:
		return &driver.RefusedError{Reason: fmt.Sprintf("%s is a node of a quorum of %d, and this one has %d: all clients have to list the same nodes (to change them: dlock bootstrap --nodes)", g.cfg.Addr, till, q.N)}
	}
	known := p.guard(g.space, q.N)
	known.kept.Store(kept)
	if err := g.leaveMark(ctx); err != nil {
		return err
	}
	known.span.Store(kept)
	if why, _ := text(reply, 5); till > now {
		g.tell(known, till, now, why)
	}
	return nil
}

// quarantine makes the error of {-4, till, TIME, why}.
func (g *guard) quarantine(p *process, a *answer) error {
	till, _ := number(a.reply, 1)
	now, _ := number(a.reply, 2)
	why, _ := text(a.reply, 3)
	clock := a.learn(2)
	if known := p.guarded.Load(); known != nil {
		g.tell(known, till, now, why)
	}
	e := &driver.RefusedError{
		Reason: g.cfg.Addr + ": " + inQuarantine(why, till, now), RetryAfter: time.Duration(till-now) * time.Microsecond,
		Clock: clock, Server: p.run,
	}
	if till == pending {
		e.RetryAfter = 20 * time.Millisecond
	}
	return e
}

// tell says once that a process does not vote, so that a first contact with new servers
// does not look like a hang.
func (g *guard) tell(to *guarded, till, now int64, why string) {
	const same = int64(time.Second / time.Microsecond)
	if told := to.told.Swap(till); till == pending || till-told < same && told-till < same {
		return
	}
	g.cfg.Event(driver.Notice{Kind: driver.NoticeQuarantined, Node: g.cfg.Addr, Detail: inQuarantine(why, till, now)})
}

// inQuarantine says why a server does not vote, for how long, and what can be done.
func inQuarantine(why string, till, now int64) string {
	what, fix := "the server is in quarantine", ""
	switch why {
	case "restart":
		what = "the server was restarted, or another took its place"
	case "new":
		what = "the server is new, or has lost its memory"
		fix = " (if all servers of this lock are new: dlock bootstrap, or bootstrap=true)"
	case "nodes":
		what = "the number of nodes was changed"
	case "clock":
		what = "the server's clock was set back"
	}
	if till == pending {
		return "restart guard: no vote until the clocks of the other nodes are known, since " + what
	}
	left := (time.Duration(till-now) * time.Microsecond).Round(100 * time.Millisecond)
	return fmt.Sprintf("restart guard: no vote for another %v, since %s%s", left, what, fix)
}

// look asks the server what it remembers, and changes nothing.
func (g *guard) look(ctx context.Context, f *fleet, q *driver.Quorum) (*driver.MemoryReport, error) {
	r, err := g.glance(ctx, f, q)
	if err != nil || r.Memory == driver.MemoryKept || !g.isMarked(ctx) {
		return r, err
	}
	// The marker comes after the memory. If there is none now either, it was taken away; a
	// moment ago another client may have been about to give it one.
	if r, err = g.glance(ctx, f, q); err == nil && r.Memory != driver.MemoryKept {
		r.Memory = driver.MemoryFlushed
	}
	return r, err
}

// glance is a look that knows of no marker.
func (g *guard) glance(ctx context.Context, f *fleet, q *driver.Quorum) (*driver.MemoryReport, error) {
	c := &Call{Text: luaLook, Keys: []string{g.meta}}
	sent := time.Now()
	if err := f.hello.do(ctx, c); err != nil {
		return nil, before(err)
	}
	run, _ := text(c.Reply, 0)
	us, ok := number(c.Reply, 1)
	up, _ := number(c.Reply, 2)
	meta, fine := text(c.Reply, 3)
	if !ok || !fine {
		return nil, &notSent{errGarbled}
	}
	f.serves(g.meta, run, us, sent, time.Now())
	r := &driver.MemoryReport{Memory: driver.MemoryNew, Clock: time.UnixMicro(us), Server: run}
	switch {
	case meta != "":
		r.Memory = driver.MemoryKept
	case (up-1)*int64(time.Second/time.Microsecond) > span(q): // it counts whole seconds, by a clock of whole seconds
		r.Memory = driver.MemoryUnused
	}
	return r, nil
}

// Bootstrap says what the server remembers, and, unless it is only to look, states that
// it is new: it then votes at once, if it has no memory. With b.Nodes it states the
// number of nodes of the quorum, and the server does not vote for one guard.
func (n *Node) Bootstrap(ctx context.Context, b *driver.Bootstrap) (*driver.MemoryReport, error) {
	if n.closed.Load() {
		return nil, driver.ErrClosed
	}
	q := n.guard.of(b.Quorum)
	switch {
	case q == nil:
		return &driver.MemoryReport{}, nil
	case n.cfg.Cluster:
		return nil, n.guard.check(&driver.Request{Quorum: q})
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.CallTimeout)
	defer cancel()
	r, err := n.guard.look(ctx, n.fleet, q)
	if err == nil && !b.DryRun {
		mode, seen := "bootstrap", r
		if b.Resize {
			mode = "nodes"
		} else if b.Observed != nil {
			seen = b.Observed
		}
		if r.Memory == driver.MemoryFlushed && seen.Memory < r.Memory {
			return r, n.explain("", errChanged) // it has given locks since, and was made to forget them
		}
		err = n.fleet.bootstrap(ctx, q, mode, seen)
	}
	if err != nil {
		return nil, n.explain("", err)
	}
	return r, nil
}

// seenFor is how long what a server said of its memory is taken for true: another client
// may give it one, and somebody may then take it away.
const seenFor = 5 * time.Second

// bootstrap makes a handshake in this mode with the process that was seen.
func (f *fleet) bootstrap(ctx context.Context, q *driver.Quorum, mode string, seen *driver.MemoryReport) error {
	p, _, err := f.process(ctx, f.guard.meta)
	if err != nil {
		return err
	}
	if p.run == "" {
		return &driver.RefusedError{Reason: f.guard.cfg.Addr + ": " + needInfo}
	}
	to := p.guard(f.guard.space, q.N)
	args := handshakeArgs(q, mode, seen.Clock.Add(seenFor).UnixMicro())
	c := &Call{Behind: f.guard.shake, Keys: []string{f.guard.meta}, Text: to.scripts[opAcquire].text, Args: args}
	if seen.Server != p.run {
		return errChanged
	}
	now, err := f.handshake(ctx, p, c, f.guard.meta)
	if err != nil {
		return err
	}
	if code, _ := number(c.Reply, 0); now != p || code == 3 {
		return errChanged
	}
	return f.guard.heed(ctx, p, q, c.Reply)
}

var errChanged = &notSent{errors.New("the server was restarted just now, or it took too long to state that it is new: try again")}

// refusal explains an error of a handshake.
func (g *guard) refusal(text string) *driver.RefusedError {
	_, text, _ = strings.Cut(text, " ")
	what, value, _ := strings.Cut(text, " ")
	reason := needInfo
	switch what {
	case "release":
		reason = fmt.Sprintf("this is release %s, which keeps scripts over a restart, so that the restart guard cannot notice it: use Redis 7 or Valkey, or restart_guard=off", value)
	case "policy":
		reason = fmt.Sprintf("maxmemory-policy is %s, so that the server may evict locks that are held: set noeviction, or restart_guard=off", value)
	case "layout":
		reason = fmt.Sprintf("%s has the layout %s, which this release does not know: use the release that wrote it, or another prefix", g.meta, value)
	}
	return &driver.RefusedError{Reason: g.cfg.Addr + ": " + reason, Err: ServerError("GUARD " + text)}
}
