package redisnode

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
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
	cfg          *Config
	meta         string // the name of what the server remembers
	handshakeKey string // the name of what a handshake writes first: see Call
	space        string // which keys that is about, for the texts of scripts
	mark         script
	lone         *driver.Quorum // of a lone instance; nil: there is none
	wg           *tracker

	warned sync.Once // of eviction
}

func newGuard(cfg *Config, wg *tracker) *guard {
	g := &guard{
		cfg:          cfg,
		wg:           wg,
		meta:         cfg.Prefix + layout + "meta",
		handshakeKey: cfg.Prefix + layout + "shake",
		space:        fmt.Sprintf("db %d prefix %x", cfg.DB, cfg.Prefix),
	}
	g.mark = marker(g.space)
	if cfg.Guard > 0 {
		g.lone = &driver.Quorum{Terms: driver.Terms{
			N: 1, Guard: cfg.Guard, Allowance: DefaultAllowance, Drift: 1,
			// By a clock that may be a hundredth faster than the holders', and twice what may be
			// wrong with it. The grace is of the TTL, and so the client's: see Node.px.
			Quarantine: cfg.Guard + cfg.Guard/100 + 2*DefaultAllowance,
		}}
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
	case g.cfg.Cluster:
		return &driver.RefusedError{Reason: g.cfg.Addr + ": a Cluster cannot have a restart guard, since its shards restart one by one: restart_guard=off"}
	}
	return nil
}

// guarded is what is known of the guard of one process, under one set of terms.
type guarded struct {
	terms   driver.Terms // immutable
	word    string       // the terms, as the server has them
	scripts [ops]script  // bound to the process and the terms
	batches batcher

	kept      atomic.Bool  // a handshake said so; the marker may be missing
	ready     atomic.Bool  // the marker is there as well: the scripts may be called
	from      atomic.Int64 // from when other terms hold, by the server's clock in µs; zero: no change is settled
	announced atomic.Int64 // until when it does not vote, as was told

	reviewed atomic.Int64 // when the settings were last looked at, as Unix time in ns
}

// guard returns what is known of the guard of a quorum that proposes these terms: under those
// that were adopted for its number of nodes, if there are any.
func (p *process) guard(space string, proposed *driver.Terms) *guarded {
	if known := p.guarded.Load(); known != nil && known.terms.N == proposed.N {
		return known
	}
	return p.adopt(space, *proposed)
}

// adopt goes by these terms from now on.
func (p *process) adopt(space string, t driver.Terms) *guarded {
	word := termsWord(&t)
	if known := p.guarded.Load(); known != nil && known.word == word {
		return known
	}
	g := &guarded{terms: t, word: word, scripts: bindGuarded(p.run, space, word, &t)}
	p.guarded.Store(g)
	return g
}

// serve returns what is known of the guard if scripts may be called under it now; nil where a
// handshake has to come first: the first one, or since other terms hold by now.
func (p *process) serve(q *driver.Quorum) *guarded {
	g := p.guarded.Load()
	if g == nil || g.terms.N != q.N || !g.ready.Load() {
		return nil
	}
	if from := g.from.Load(); from != 0 && !time.Now().Before(p.clock.passed(from)) {
		return nil
	}
	return g
}

// review looks in the background, every half guard while the server is bid on, whether it
// could still vote if it were asked for the first time: somebody may have made it evict keys.
// If not, the next bid is refused by a handshake, with the reason.
func (f *router) review(p *process, g *guarded, q *driver.Quorum) {
	now, last := time.Now().UnixNano(), g.reviewed.Load()
	if age := time.Duration(now - last); age >= 0 && age < g.terms.Guard/2 || !g.reviewed.CompareAndSwap(last, now) {
		return
	}
	c := &Call{
		Behind: f.guard.handshakeKey, Keys: []string{f.guard.meta}, Text: g.scripts[opAcquire].text,
		Args: handshakeArgs(q, "", 0), // now: q is the caller's
	}
	f.guard.wg.add()
	go func() {
		defer f.guard.wg.done()
		ctx, cancel := context.WithTimeout(context.Background(), f.guard.cfg.CallTimeout)
		defer cancel()
		_, err := f.handshake(ctx, p, c, f.guard.meta)
		var refusal ServerError
		if !errors.As(err, &refusal) || !strings.HasPrefix(string(refusal), "GUARD ") {
			return // who serves now, and whether it answers, is for the next bid to find out
		}
		g.kept.Store(false)
		g.ready.Store(false)
		why := f.guard.refusal(string(refusal))
		f.guard.cfg.Event(driver.Notice{Kind: driver.NoticeEviction, Node: f.guard.cfg.Addr, Err: why, Detail: "it does not vote any longer: " + why.Error()})
	}()
}

// evicts warns once of a server that evicts keys, where no guard refuses it.
func (g *guard) evicts(policy string) {
	g.warned.Do(func() {
		g.cfg.Event(driver.Notice{Kind: driver.NoticeEviction, Node: g.cfg.Addr, Detail: "maxmemory-policy is " + policy + ": the server may evict locks that are held, and give them to others; set noeviction"})
	})
}

// unmarked returns what is known of a server after a handshake that suits q, where only the
// marker is missing: time ran out before it was left. Otherwise nil.
func (p *process) unmarked(q *driver.Quorum) *guarded {
	if g := p.guarded.Load(); g != nil && g.terms.N == q.N && g.kept.Load() && !g.ready.Load() {
		return g
	}
	return nil
}

// termsWord writes terms as the server has them: see lua/guard.lua.
func termsWord(t *driver.Terms) string {
	us := func(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }
	return fmt.Sprintf("%d/%d/%d/%d/%d/%d/%d", t.N, us(t.Guard), us(t.Excuse), us(t.Allowance), us(t.Quarantine), us(t.Grace), t.Drift)
}

// parseTerms reads what termsWord wrote.
func parseTerms(word string) (driver.Terms, bool) {
	var n [7]int64
	words := strings.Split(word, "/")
	if len(words) != len(n) {
		return driver.Terms{}, false
	}
	for i, w := range words {
		var err error
		if n[i], err = strconv.ParseInt(w, 10, 64); err != nil || n[i] < 0 || n[i] > 1<<53 {
			return driver.Terms{}, false
		}
	}
	us := func(i int) time.Duration { return time.Duration(n[i]) * time.Microsecond }
	return driver.Terms{N: int(n[0]), Guard: us(1), Excuse: us(2), Allowance: us(3), Quarantine: us(4), Grace: us(5), Drift: int(n[6])}, true
}

// metaTerms returns the terms of what a server remembers, and those that it is changing to.
func metaTerms(meta string) (terms string, next string) {
	words := strings.Split(meta, " ")
	if len(words) < 5 || words[0] != metaLayout {
		return "", ""
	}
	_, terms, _ = strings.Cut(words[1], "/")
	return terms, words[4]
}

// metaLayout is the layout of meta. Another is refused by name.
const metaLayout = "2"

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
	return []string{"handshake", i(others), mode, i(until), termsWord(q.Proposal())}
}

// stale reports whether the script refused because the process of the last handshake
// was another one, or the server has forgotten it.
func (a *answer) stale() bool { code, _ := number(a.Reply, 0); return code == -3 }

// recall goes by the terms that the server refused by: {-3, TIME, meta}. Where it remembers
// none, by those that the quorum proposes.
func (g *guard) recall(p *process, q *driver.Quorum, a *answer) {
	meta, _ := text(a.Reply, 2)
	word, _ := metaTerms(meta)
	if t, ok := parseTerms(word); ok && t.N == q.N {
		p.adopt(g.space, t)
	} else if meta == "" {
		p.adopt(g.space, *q.Proposal())
	}
}

// overGuard is the refusal of a TTL.
func (g *guard) overGuard(ttl time.Duration, t *driver.Terms, q *driver.Quorum) error {
	if q == g.lone {
		return &driver.RefusedError{Reason: fmt.Sprintf("%s: TTL %v is over the restart guard, %v", g.cfg.Addr, ttl, t.Guard)}
	}
	return &driver.RefusedError{Reason: fmt.Sprintf("%s: TTL %v is over the restart guard that the node keeps, %v, and this client's restart_guard is %v: take a shorter TTL, or give the nodes this client's terms (dlock bootstrap --terms)", g.cfg.Addr, ttl, t.Guard, q.Guard)}
}

// quarantined reports whether the server does not vote yet.
func (a *answer) quarantined() bool { code, _ := number(a.Reply, 0); return code == -4 }

// pending is the end of a quarantine that has not begun, since the other nodes' clocks
// were not known.
const pending = 9007199254740991

// overlong reports whether a quarantine can be counted anew with profit: it takes longer
// than the guard, because a clock was wrong or the others' were not known.
func (p *process) overlong(a *answer, q *driver.Quorum) bool {
	till, _ := number(a.Reply, 1)
	now, _ := number(a.Reply, 2)
	if q.N > 1 && (q.OtherClocks == nil || q.OtherClocks().IsZero()) {
		return false
	}
	t := &q.Terms
	if g := p.guarded.Load(); g != nil {
		t = &g.terms
	}
	return till-now > int64((t.Quarantine+t.Allowance)/time.Microsecond)
}

// prepare does what comes before a handshake, and returns its mode; what says why a lone
// instance is taken for new.
func (g *guard) prepare(ctx context.Context, f *router, p *process, q *driver.Quorum) (mode, what string, err error) {
	if p.run == "" {
		return "", "", &driver.RefusedError{Reason: g.cfg.Addr + ": " + needInfo}
	}
	if g.cfg.Durable {
		if err := g.durable(ctx); err != nil {
			return "", "", err
		}
		mode = "durable"
	}
	if q == g.lone && !p.guard(g.space, q.Proposal()).kept.Load() { // else it has kept our own locks
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

// announceNew says that a lone instance was taken for new, if the handshake c did so.
func (g *guard) announceNew(c *Call, what string) {
	now, _ := number(c.Reply, 2)
	if code, _ := number(c.Reply, 0); code == 1 {
		if till, _ := number(c.Reply, 3); till <= now {
			g.cfg.Event(driver.Notice{Kind: driver.NoticeBootstrapped, Node: g.cfg.Addr, Detail: what})
		}
	}
}

// readHandshake reads a handshake's reply: {code, run_id, TIME, till, terms, why, from}.
func (g *guard) readHandshake(ctx context.Context, p *process, q *driver.Quorum, reply []any) error {
	code, _ := number(reply, 0)
	now, _ := number(reply, 2)
	till, _ := number(reply, 3)
	word, _ := text(reply, 4)
	why, _ := text(reply, 5)
	from, _ := number(reply, 6)
	terms, ok := parseTerms(word)
	switch {
	case !ok:
		return &notSent{errors.New("the server answers a handshake in an unknown way")}
	case code == 2:
		return &driver.RefusedError{Reason: fmt.Sprintf("%s is a node of a quorum of %d, and this one has %d: all clients have to list the same nodes (to change them: dlock bootstrap --nodes)", g.cfg.Addr, till, q.N)}
	case code == 3:
		return nil // once more
	case code == 4:
		p.adopt(g.space, terms)
		return nil // once more, under those
	case code == 5:
		return g.refuse(p, till, now, why, time.UnixMicro(now)) // somebody has to ask the other nodes first
	}
	known := p.adopt(g.space, terms)
	known.from.Store(from)
	known.reviewed.Store(time.Now().UnixNano())
	known.kept.Store(true)
	if err := g.leaveMark(ctx); err != nil {
		return err
	}
	known.ready.Store(true)
	if till > now {
		g.announce(known, till, now, why)
	}
	return nil
}

// quarantine makes the error of {-4, till, TIME, why}.
func (g *guard) quarantine(p *process, a *answer) error {
	till, _ := number(a.Reply, 1)
	now, _ := number(a.Reply, 2)
	why, _ := text(a.Reply, 3)
	clock := a.learn(2)
	if known := p.guarded.Load(); known != nil {
		g.announce(known, till, now, why)
	}
	return g.refuse(p, till, now, why, clock)
}

// refuse makes the error of a server that does not vote.
func (g *guard) refuse(p *process, till, now int64, why string, clock time.Time) error {
	e := &driver.RefusedError{
		Reason: g.cfg.Addr + ": " + inQuarantine(why, till, now), RetryAfter: time.Duration(till-now) * time.Microsecond,
		Clock: clock, Server: p.run,
	}
	if till == pending {
		e.RetryAfter = 20 * time.Millisecond
	}
	return e
}

// announce says once that a process does not vote, so that a first contact with new servers
// does not look like a hang.
func (g *guard) announce(to *guarded, till, now int64, why string) {
	const same = int64(time.Second / time.Microsecond)
	if told := to.announced.Swap(till); till == pending || till-told < same && told-till < same {
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
		fix = " (dlock bootstrap before the first client, or bootstrap=true, spares new servers this)"
	case "nodes":
		what = "the number of nodes was changed"
	case "clock":
		what = "the server's clock was set back"
	}
	if till == pending {
		return "restart guard: no vote until the clocks and the terms of the other nodes are known, since " + what
	}
	left := (time.Duration(till-now) * time.Microsecond).Round(100 * time.Millisecond)
	return fmt.Sprintf("restart guard: no vote for another %v, since %s%s", left, what, fix)
}

// look asks the server what it remembers, and changes nothing.
func (g *guard) look(ctx context.Context, f *router, q *driver.Quorum) (*driver.MemoryReport, error) {
	r, err := g.lookAtMemory(ctx, f, q)
	if err != nil || r.Memory == driver.MemoryKept || !g.isMarked(ctx) {
		return r, err
	}
	// The marker comes after the memory. If there is none now either, it was taken away; a
	// moment ago another client may have been about to give it one.
	if r, err = g.lookAtMemory(ctx, f, q); err == nil && r.Memory != driver.MemoryKept {
		r.Memory = driver.MemoryFlushed
	}
	return r, err
}

// lookAtMemory is a look that knows of no marker.
func (g *guard) lookAtMemory(ctx context.Context, f *router, q *driver.Quorum) (*driver.MemoryReport, error) {
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
		report(r, meta)
	case time.Duration(up-1)*time.Second > q.Proposal().Quarantine: // it counts whole seconds, by a clock of whole seconds
		r.Memory = driver.MemoryUnused
	}
	return r, nil
}

// report adds to r the terms that meta has.
func report(r *driver.MemoryReport, meta string) {
	word, next := metaTerms(meta)
	if t, ok := parseTerms(word); ok {
		r.Terms = &t
	}
	from, word, _ := strings.Cut(next, ":")
	if t, ok := parseTerms(word); ok {
		r.Next = &t
		if us, err := strconv.ParseInt(from, 10, 64); err == nil && us > 0 {
			r.From = time.UnixMicro(us)
		}
	}
}

// Bootstrap says what the server remembers, and makes b's statement: see
// driver.GuardAdmin.
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
	r, err := n.guard.look(ctx, n.router, q)
	if err == nil && !b.DryRun {
		mode, seen := modes[b.Statement], r
		if b.Statement == driver.StateNew && b.Observed != nil {
			seen = b.Observed
		}
		if mode == "" || q == n.guard.lone && b.Statement != driver.StateNew {
			return r, driver.Invalid("Statement", "%d is for the nodes of a quorum", b.Statement)
		}
		if r.Memory == driver.MemoryFlushed && seen.Memory < r.Memory {
			return r, n.explain("", errChanged) // it has given locks since, and was made to forget them
		}
		err = n.router.bootstrap(ctx, q, mode, seen)
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
func (f *router) bootstrap(ctx context.Context, q *driver.Quorum, mode string, seen *driver.MemoryReport) error {
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
	args := handshakeArgs(q, mode, seen.Clock.Add(seenFor).UnixMicro())
	for range 3 {
		to := p.guard(f.guard.space, q.Proposal())
		c := &Call{Behind: f.guard.handshakeKey, Keys: []string{f.guard.meta}, Text: to.scripts[opAcquire].text, Args: args}
		now, err := f.handshake(ctx, p, c, f.guard.meta)
		if err != nil {
			return err
		}
		code, _ := number(c.Reply, 0)
		if now != p || code == 3 {
			return errChanged
		}
		if err := f.guard.readHandshake(ctx, p, q, c.Reply); err != nil || code != 4 || mode != modes[driver.StateNew] {
			return err
		}
	}
	return errChanged
}

// modes are the statements as a handshake has them.
var modes = map[driver.Statement]string{
	driver.StateNew: "bootstrap", driver.StateNodes: "nodes", driver.StateTerms: "terms", driver.StateTermsSettled: "settled",
}

var errChanged = &notSent{errors.New("the server was restarted just now, or the statement took too long: try again")}

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
