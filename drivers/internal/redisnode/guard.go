package redisnode

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/memory"
)

// The restart guard keeps a server that may have forgotten locks out of the vote until all of
// them have ended. lua/handshake.lua and lua/guard.lua are its two parts on the server; this
// file interprets their answers, and handshake.go calls them.

// marker is a script that does nothing; only its presence counts. It survives FLUSHALL, so that
// an emptied server does not count as new. It is the same in every release. Each space of keys
// has its own, because another application's locks do not show what the server has forgotten of
// ours.
func marker(space string) lua.Script { return lua.New("return 'dlock-used' -- " + space) }

// guard is the restart guard of a node.
type guard struct {
	cfg          *Config
	meta         string // the key of the server's memory
	handshakeKey string // the key that a handshake writes first: see Call
	space        string // the space of keys, for the texts of scripts
	mark         lua.Script
	lone         *quorum.Info // the guard of a lone instance; nil: none
	wg           *async.Tracker

	warned sync.Once // for warning of eviction once
}

func newGuard(cfg *Config, wg *async.Tracker) *guard {
	g := &guard{
		cfg:          cfg,
		wg:           wg,
		meta:         cfg.Prefix + names.Layout + "meta",
		handshakeKey: cfg.Prefix + names.Layout + "shake",
		space:        fmt.Sprintf("db %d prefix %x", cfg.DB, cfg.Prefix),
	}
	g.mark = marker(g.space)
	if cfg.Guard > 0 {
		g.lone = &quorum.Info{Terms: quorum.Terms{
			N: 1, Guard: cfg.Guard, Allowance: DefaultAllowance, Drift: 1,
			// The clock may be a hundredth faster than the holders', and wrong by twice the
			// allowance. The grace depends on the TTL, so the client computes it: see Node.span.
			Quarantine: cfg.Guard + cfg.Guard/100 + 2*DefaultAllowance,
		}}
	}
	return g
}

// of returns the guard that a request needs: that of its quorum, or of a lone instance; nil
// without a guard.
func (g *guard) of(q *quorum.Info) *quorum.Info {
	switch {
	case q == nil:
		return g.lone
	case q.Guard > 0:
		return q
	}
	return nil
}

// guard returns the knowledge about the guard for a quorum that proposes these terms, under the
// adopted terms for its number of nodes if there are any.
func (p *process) guard(space string, proposed *quorum.Terms) *guarded {
	if known := p.guarded.Load(); known != nil && known.terms.N == proposed.N {
		return known
	}
	return p.adopt(space, *proposed)
}

// adopt uses these terms from now on.
func (p *process) adopt(space string, t quorum.Terms) *guarded {
	encoded := memory.EncodeTerms(&t)
	if known := p.guarded.Load(); known != nil && known.encoded == encoded {
		return known
	}
	g := &guarded{terms: t, encoded: encoded, bound: bound{scripts: lua.BindGuarded(p.run, space, encoded, &t)}}
	p.guarded.Store(g)
	return g
}

// serve returns the knowledge about the guard if scripts may be called under it now; nil if a
// handshake must come first.
func (p *process) serve(q *quorum.Info) *guarded {
	g := p.guarded.Load()
	if g == nil || g.terms.N != q.N || !g.ready.Load() {
		return nil
	}
	return g
}

// evicts warns once of a server that evicts keys, if no guard refuses it.
func (g *guard) evicts(policy string) {
	g.warned.Do(func() {
		g.cfg.Notify(driver.Notice{Kind: quorum.NoticeEviction, Node: g.cfg.Addr, Detail: "maxmemory-policy is " + policy + ": the server may evict locks that are held, and give them to others; set noeviction"})
	})
}

// overGuard refuses a TTL longer than the guard.
func (g *guard) overGuard(ttl time.Duration, t *quorum.Terms, q *quorum.Info) error {
	if q == g.lone {
		return &driver.RefusedError{Reason: fmt.Sprintf("%s: TTL %v is over the restart guard, %v", g.cfg.Addr, ttl, t.Guard)}
	}
	return &driver.RefusedError{Reason: fmt.Sprintf("%s: TTL %v is over the restart guard that the node keeps, %v, and this client's restart_guard is %v: take a shorter TTL, or give the nodes this client's terms (dlock bootstrap --changed)", g.cfg.Addr, ttl, t.Guard, q.Guard)}
}

// overlong reports whether computing a quarantine anew may shorten it: it takes longer than the
// guard, because a clock was wrong or the other nodes' clocks were unknown.
func (p *process) overlong(reply []any, q *quorum.Info) bool {
	till, _ := number(reply, 1)
	now, _ := number(reply, 2)
	if q.N > 1 && (q.OtherClocks == nil || q.OtherClocks().IsZero()) {
		return false
	}
	t := &q.Terms
	if g := p.guarded.Load(); g != nil {
		t = &g.terms
	}
	return till-now > int64((t.Quarantine+t.Allowance)/time.Microsecond)
}

const needInfo = "the restart guard must know the server's run_id: allow the command INFO, or restart_guard=off"

// leaveMark loads the marker into the server: after a handshake, so that no other client
// believes that a new server was emptied, and before the first vote. If SCRIPT is not allowed
// it uses EVAL, though the server may then evict the marker. Each handshake loads it, because
// SCRIPT FLUSH removes it and leads to a handshake.
func (g *guard) leaveMark(ctx context.Context) error {
	err := each(ctx, g.cfg.Client, g.wg, func(s Server) error {
		_, err := s.Do(ctx, "SCRIPT", "LOAD", g.mark.Text)
		var refusal ServerError
		if errors.As(err, &refusal) {
			_, err = s.Do(ctx, "EVAL", g.mark.Text, "0")
		}
		return err
	})
	if err != nil {
		return NotSent(err)
	}
	return nil
}

// isMarked reports whether this server process has ever had locks under a guard. It returns
// true if that cannot be known.
func (g *guard) isMarked(ctx context.Context) bool {
	found := false
	err := each(ctx, g.cfg.Client, g.wg, func(s Server) error {
		_, err := s.Do(ctx, "EVALSHA", g.mark.SHA, "0")
		if isCode(err, "NOSCRIPT") {
			return nil
		}
		found = found || err == nil
		return err
	})
	return found || err != nil
}

// durable refuses a server whose settings allow it to forget acknowledged writes.
func (g *guard) durable(ctx context.Context) error {
	return each(ctx, g.cfg.Client, g.wg, func(s Server) error {
		for _, c := range [][2]string{{"appendonly", "yes"}, {"appendfsync", "always"}} {
			reply, err := s.Do(ctx, "CONFIG", "GET", c[0])
			var refusal ServerError
			if errors.As(err, &refusal) {
				return nil // the URL's statement counts
			}
			if err != nil {
				return NotSent(err)
			}
			if value, ok := configValue(reply, c[0]); ok && value != c[1] {
				return &driver.RefusedError{Reason: fmt.Sprintf("%s: durable=true needs %s %s, and it is %s", s.Addr(), c[0], c[1], value)}
			}
		}
		return nil
	})
}

// readHandshake parses a handshake's reply: {code, run_id, TIME, till, terms, why}.
func (g *guard) readHandshake(ctx context.Context, p *process, q *quorum.Info, reply []any, mode string) error {
	code, _ := number(reply, 0)
	now, _ := number(reply, 2)
	till, _ := number(reply, 3)
	encoded, _ := text(reply, 4)
	why, _ := text(reply, 5)
	terms, ok := memory.ParseTerms(encoded)
	switch {
	case !ok:
		return NotSent(errors.New("the server answers a handshake in an unknown way"))
	case code == 2:
		return &driver.RefusedError{Reason: fmt.Sprintf("%s is a node of a quorum of %d, and this one has %d: all clients must list the same nodes (to change them: dlock bootstrap --changed)", g.cfg.Addr, till, q.N)}
	case code == 3:
		return nil // once more
	case code == 4:
		p.adopt(g.space, terms)
		return nil // once more, with the terms of the server
	case code == 5:
		return g.refuse(memory.Pending, now, why, time.UnixMicro(now)) // the other nodes must be asked first
	}
	known := p.adopt(g.space, terms)
	known.reviewed.Store(time.Now().UnixNano())
	if err := g.leaveMark(ctx); err != nil {
		return err
	}
	known.ready.Store(true)
	switch {
	case till > now:
		g.announce(known, till, now, why)
	case q == g.lone && code == 1 && mode == memory.Modes[quorum.StateNew]:
		g.cfg.Notify(driver.Notice{Kind: quorum.NoticeBootstrapped, Node: g.cfg.Addr, Detail: "the server is new: it votes at once"})
	}
	return nil
}

// quarantine makes the error from {-4, till, TIME, why}.
func (g *guard) quarantine(p *process, reply []any, clock time.Time) error {
	till, _ := number(reply, 1)
	now, _ := number(reply, 2)
	why, _ := text(reply, 3)
	if known := p.guarded.Load(); known != nil {
		g.announce(known, till, now, why)
	}
	return g.refuse(till, now, why, clock)
}

// refuse makes the error of a server that does not vote.
func (g *guard) refuse(till, now int64, why string, clock time.Time) error {
	e := &driver.RefusedError{
		Reason: g.cfg.Addr + ": " + memory.InQuarantine(why, till, now), RetryAfter: time.Duration(till-now) * time.Microsecond,
		Clock: clock,
	}
	if till == memory.Pending {
		e.RetryAfter = 20 * time.Millisecond
	}
	return e
}

// announce reports once that a process does not vote, so that a first contact with new servers
// does not look like a hang.
func (g *guard) announce(to *guarded, till, now int64, why string) {
	const same = int64(time.Second / time.Microsecond)
	if told := to.announced.Swap(till); till == memory.Pending || till-told < same && told-till < same {
		return
	}
	g.cfg.Notify(driver.Notice{Kind: quorum.NoticeQuarantined, Node: g.cfg.Addr, Detail: memory.InQuarantine(why, till, now)})
}

var errChanged = NotSent(errors.New("the server was restarted just now, or the statement took too long: try again"))

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
		reason = fmt.Sprintf("the key %q has layout %s, which this release does not know: use the release that wrote it, or another prefix", g.meta, value)
	case "type":
		reason = fmt.Sprintf("the key %q holds something that is not the restart guard's memory: remove it, or use another prefix", g.meta)
	}
	return &driver.RefusedError{Reason: g.cfg.Addr + ": " + reason, Err: ServerError("GUARD " + text)}
}
