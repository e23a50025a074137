package redlock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
)

// simServer models one node's server: its memory, a clock that may drift and step, processes
// that end and begin, and the effects of the real scripts. Parts of it can be taken out, to
// show that the simulation notices.
type simServer struct {
	id      int
	broken  simBroken
	durable bool // it forgets nothing that it acknowledged

	mu        sync.Mutex
	at        time.Time // a fixed time of the clock; zero: see clock
	process   int       // number of starts
	run       string    // names the process
	memory    simMemory
	queue     []simPlace       // the wait queue: also in memory, but it protects nothing
	dissolves time.Time        // when the queue ends if no waiter asks again
	gone      map[string]bool  // processes that no message reaches any more
	written   []simMemory      // memory after each write, the newest last: an RDB file or an AOF may restore any
	texts     map[simText]bool // the script cache
	marked    bool             // the script cache has the marker

	began     time.Time
	offset    time.Duration
	right     time.Duration // the offset of the right clock
	rate      float64       // rate of its clock, minus one
	paused    time.Time     // it does not answer until then
	stated    time.Time     // until then a statement that it is new may arrive
	contacts  int           // scripts that compared the clock with the high-water mark
	steppedAt int           // value of contacts when the clock was last set
}

// simBroken says which parts of a node's scripts are broken: first those that protect tokens,
// then those of the restart guard.
type simBroken struct {
	owner      bool // a raise does not check the owner
	instance   bool // a raise or renewal checks the owner, but not the acquisition
	join       bool // a join takes the key whatever its counter
	first      bool // the counter rises to the first token of a range
	perishable bool // a late request takes effect
	lag        bool // an old proposal is accepted
	old        bool // the clock is compared with the mark only if there is no counter
	ahead      bool // a token ahead of the clock does not make it compared
	floor      bool // a clock that fell below the mark raises nothing
	hasty      bool // a clock that fell a little raises the floor
	life       bool // a counter's life counts from the clock instead of its token

	guard   bool // a node in quarantine votes
	bond    bool // a script does not check that its own process had the last handshake
	repair  bool // a handshake assumes that it runs in the process for which its script is
	apart   bool // a handshake and the loading of its script are two commands
	others  bool // only the node's own clock counts a quarantine
	own     bool // a node that forgot later terms has the quarantine of its own
	high    bool // there is no high-water mark
	ownStep bool // only the clock that was set back counts its quarantine
	nodes   bool // scripts do not compare the number of nodes
	new     bool // a node without memory counts as new, even if another process was examined, or too long ago
	grace   bool // a key is kept for the TTL and one thousandth of it
	kept    bool // a key is reserved for the next waiter forty times as long
	caller  bool // a release uses the context of the caller that took the lease
	hides   bool // a node with a memory says that it is new
	once    bool // each node is told only once of a change of nodes
	shrinks bool // a change of terms shrinks protections at once
	alone   bool // a node that forgot takes the terms of a change as if no other node remembered
}

// simMemory is a server's database.
type simMemory struct {
	lock simKey
	mark simMark
	meta simMeta
}

// simMark is the data that all counters of a server share: see lua/counter.lua. It is in
// microseconds; high is zero if there is none.
type simMark struct{ high, top, floor int64 }

type simKey struct {
	owner   string      // empty: free, or reserved for the next waiter, or readers have it
	readers *simReaders // nil: none
	next    string      // the place in the queue for which the key is reserved
	since   uint64      // since when this waiter waits
	fence   uint64
	until   time.Time // by the server's clock
	counter uint64    // zero: no counter
	ends    time.Time // when the counter expires
}

func (k *simKey) free() bool { return k.owner == "" && k.next == "" && k.readers == nil }

func (k *simKey) clear() { k.owner, k.next, k.readers = "", "", nil }

// simReaders are the readers that have a key. It is never changed, since written memories have it.
type simReaders struct {
	all   []simReader
	base  uint64 // the counter when the first of them came
	votes bool   // all since then were votes that were given back, or may be
}

// simReader is a reader that has a key, or a waiter for which the key is kept.
type simReader struct {
	owner string // empty: a waiter
	place string
	fence uint64
	until time.Time
}

// without returns the readers without these, or nil if none is left. Unless they are votes that are given
// back, they may have been leases.
func (r *simReaders) without(ends func(simReader) bool, votes bool) *simReaders {
	if r == nil || !slices.ContainsFunc(r.all, ends) {
		return r
	}
	left := slices.DeleteFunc(slices.Clone(r.all), ends)
	if len(left) == 0 {
		return nil
	}
	return &simReaders{left, r.base, r.votes && votes}
}

// with returns the readers with one more.
func (r *simReaders) with(one simReader, votes bool) *simReaders {
	return &simReaders{append(slices.Clone(r.all), one), r.base, r.votes && votes}
}

func (r *simReaders) find(owner string) *simReader {
	if r != nil {
		for i := range r.all {
			if one := &r.all[i]; one.owner == owner && owner != "" {
				return one
			}
		}
	}
	return nil
}

// reads reports whether a place in the queue is a reader's.
func (p simPlace) reads() bool { return strings.Contains(p.place, ".r") }

// simPlace is a place in the wait queue. Its name begins with the process, before a dot, and
// ends, after another dot, with the milliseconds for which the key is reserved for it.
type simPlace struct {
	place string
	since uint64
}

func (p *simPlace) kept() time.Duration {
	ms, err := strconv.Atoi(p.place[strings.LastIndexByte(p.place, '.')+1:])
	if err != nil {
		panic(err)
	}
	return time.Duration(ms) * time.Millisecond
}

// simMeta is a server's memory for the restart guard: see lua/guard.lua. Times are in
// microseconds.
type simMeta struct {
	run        string // empty: no memory
	terms      quorum.Terms
	till, high int64
	why        string
}

// simText is a script, bound to a process and to terms.
type simText struct {
	run   string
	terms quorum.Terms
	op    simOp
}

type simOp uint8

const (
	simAcquire simOp = iota
	simJoin
	simRenew
)

// simPending is the end of a quarantine that has not begun yet.
const simPending int64 = 1<<53 - 1

func newSimServer(id int) *simServer {
	s := &simServer{id: id, texts: map[simText]bool{}, gone: map[string]bool{}, began: time.Now(), run: fmt.Sprintf("sim-%d.0", id)}
	s.note()
	return s
}

// clock returns the server's time. The caller holds s.mu.
func (s *simServer) clock() time.Time {
	if !s.at.IsZero() {
		return s.at
	}
	now := time.Now()
	return now.Add(s.offset + time.Duration(float64(now.Sub(s.began))*s.rate)).Round(0)
}

func (s *simServer) micros() int64 { return s.clock().UnixMicro() }

// key returns the current lock. The caller holds s.mu.
func (s *simServer) key() *simKey {
	k := &s.memory.lock
	if s.over(k.until) {
		k.clear()
	}
	k.readers = k.readers.without(func(r simReader) bool { return !s.clock().Before(r.until) }, false)
	if s.over(k.ends) {
		k.counter = 0
	}
	if s.over(s.dissolves) {
		s.queue = nil
	}
	return k
}

// over reports whether a key with this end has ended: servers count whole milliseconds.
func (s *simServer) over(end time.Time) bool { return s.clock().Truncate(time.Millisecond).After(end) }

// ending returns the end of a key that is kept for d from now on.
func (s *simServer) ending(d time.Duration) time.Time {
	return s.clock().Truncate(time.Millisecond).Add((d + time.Millisecond - 1).Truncate(time.Millisecond))
}

// note records the memory as written. The caller holds s.mu.
func (s *simServer) note() {
	if n := len(s.written); n == 0 || s.written[n-1] != s.memory {
		s.written = append(s.written, s.memory)
	}
}

// simReply is the answer of every operation.
type simReply struct {
	code   simCode
	err    error
	fence  uint64
	clock  time.Time
	server string

	now, till int64
	terms     quorum.Terms
	none      bool // the server has no meta
	why       string
	memory    quorum.Memory
	unsent    bool  // the operation itself was not sent
	before    int64 // the counter before a grant, and 1; 0: unknown
}

// answer returns what the reply means to a bid.
func (r *simReply) answer() answer {
	got := result{err: r.err}
	got.read()
	return got.answer
}

// inDoubt reports whether a failed acquire or join may still take effect.
func (r *simReply) inDoubt() bool {
	a := r.answer()
	return !r.unsent && (a == silence || a == gone)
}

type simCode uint8

const (
	simDone        simCode = iota
	simNoScript            // the script is not in the cache
	simStale               // the process is not that of the last handshake
	simQuarantined         // it does not vote yet
	simOtherQuorum         // it has another number of nodes
	simOtherTerms          // it has other terms
	simChanged             // not done: the server is no longer the one that was examined and counted as new
	simUnknown             // not done: the other nodes are unknown
)

func (s *simServer) reply(fence uint64, err error) simReply {
	return simReply{err: err, fence: fence, clock: s.clock(), server: s.name(), now: s.micros()}
}

func (s *simServer) name() string { return s.run }

// late reports whether a request arrived after its end, and must be refused.
func (s *simServer) late(notAfter time.Time) bool {
	return !s.broken.perishable && !notAfter.IsZero() && s.clock().After(notAfter)
}

// hello models lua/hello.lua; look models lua/look.lua, and also asks for the marker.
func (s *simServer) hello() simReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reply(0, nil)
}

func (s *simServer) look() simReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.reply(0, nil)
	switch {
	case s.memory.meta.run != "":
		r.memory, r.terms = quorum.MemoryKept, s.memory.meta.terms
	case s.marked:
		r.memory = quorum.MemoryFlushed
	default:
		r.memory = quorum.MemoryNew
	}
	return r
}

// mark loads the marker.
func (s *simServer) mark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marked = true
}

// simShake are the arguments of a handshake, in microseconds.
type simShake struct {
	text        simText
	others      int64 // 0: there are none; -1: unknown
	mode        string
	until       int64        // when the node no longer counts as new
	terms       quorum.Terms // to set if there is no meta, or to change to
	load, check bool         // which of the two steps it makes
}

// handshake models lua/handshake.lua.
func (s *simServer) handshake(h simShake) simReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.note()
	if h.load {
		s.texts[h.text] = true
	}
	if !h.check {
		return s.reply(0, nil)
	}
	id, now, m := s.name(), s.micros(), s.memory.meta
	if s.broken.repair {
		id = h.text.run
	}
	no := func(code simCode, terms quorum.Terms) simReply {
		return simReply{code: code, clock: s.clock(), server: s.name(), now: now, terms: terms}
	}
	known, terms := m.run != "", m.terms
	switch {
	case known && h.mode != "changed" && m.terms.N != h.terms.N && !s.broken.nodes:
		return no(simOtherQuorum, m.terms)
	case known:
	case h.terms != h.text.terms:
		return no(simOtherTerms, h.terms)
	case h.mode == "bootstrap" && (h.text.run != id || now > h.until) && !s.broken.new:
		return no(simChanged, h.terms)
	case h.mode != "bootstrap" && h.mode != "changed" && h.others < 0 && !s.broken.others:
		r := no(simUnknown, h.terms)
		r.till, r.why = simPending, "new"
		return r
	default:
		terms = h.terms
	}
	if h.mode == "changed" {
		old := terms
		terms = h.terms
		if !s.broken.shrinks && (m.till > now || old.Guard != terms.Guard || old.Excuse != terms.Excuse || old.Allowance != terms.Allowance) {
			terms.Quarantine = max(terms.Quarantine, old.Quarantine+max(terms.Excuse-old.Excuse, 0))
			terms.Grace, terms.Drift = max(terms.Grace, old.Grace), max(terms.Drift, old.Drift)
		}
	}
	grown := false
	if h.others > 0 && h.mode != "changed" && known && (m.run != id && h.mode != "durable" || m.till > now) && !s.broken.own {
		grown = h.terms.Quarantine > terms.Quarantine
		terms.Quarantine = max(terms.Quarantine, h.terms.Quarantine)
	}
	fresh, quarantine := simPending, int64(terms.Quarantine/time.Microsecond)
	switch {
	case s.broken.others:
		fresh = now + quarantine
	case h.others == 0, h.others > 0 && h.text.run == s.name():
		fresh = min(max(now, h.others)+quarantine, simPending)
	}
	till, why := m.till, m.why
	switch {
	case h.mode == "changed":
		till, why = fresh, h.mode
	case !known && h.mode != "bootstrap":
		till, why = fresh, "new"
	case !known:
		till, why = 0, ""
	case m.run != id && h.mode != "durable":
		till, why = fresh, "restart"
	case m.run == id && till > now && grown:
		till = fresh
	case m.run == id && till > now:
		till = min(till, fresh)
	}
	high := m.high
	if m.run != id && (!known || h.mode != "durable") {
		high = now
	}
	s.memory.meta = simMeta{run: id, terms: terms, till: till, high: high, why: why}
	r := s.reply(0, nil)
	r.server, r.till, r.terms, r.why = id, till, terms, why
	if id == h.text.run && terms != h.text.terms {
		r.code = simOtherTerms
	}
	return r
}

// evalsha runs a script, with lua/time.lua and lua/guard.lua before it.
func (s *simServer) evalsha(t simText, notAfter time.Time, body func() simReply) simReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.note()
	m := &s.memory.meta
	switch {
	case !s.texts[t]:
		return simReply{code: simNoScript}
	case s.late(notAfter):
		return s.reply(0, context.DeadlineExceeded)
	case !s.broken.bond && (m.run != t.run || m.terms != t.terms && !(s.broken.nodes && m.terms.N != t.terms.N)):
		r := s.reply(0, nil)
		r.code, r.terms, r.none = simStale, m.terms, m.run == ""
		return r
	}
	s.contacts++
	allow := int64(t.terms.Allowance / time.Microsecond)
	if now := s.micros(); !s.broken.high && m.run != "" && (now < m.high-allow || now > m.high+allow/2) {
		if now < m.high {
			m.till, m.why = simPending, "clock"
			if s.broken.ownStep {
				m.till = now + int64(m.terms.Quarantine/time.Microsecond)
			}
		}
		m.high = now
	}
	if votes := t.op != simRenew; votes && s.micros() < m.till && !s.broken.guard {
		r := s.reply(0, nil)
		r.code, r.till, r.why = simQuarantined, m.till, m.why
		return r
	}
	return body()
}

// plain runs a script without the guard.
func (s *simServer) plain(notAfter time.Time, body func() simReply) simReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.note()
	if s.late(notAfter) {
		return s.reply(0, context.DeadlineExceeded)
	}
	return body()
}

// simCall holds the arguments of a script.
type simCall struct {
	me    string        // owner/attempt
	ttl   time.Duration // without the grace
	token uint64        // proposed by acquire (or 0); of the lease of a join or renewal
	more  int64         // for acquire: the tokens of the range besides the last one
	least uint64        // least value of the counter after a renewal
	life  time.Duration // lifetime of the counter after its last token

	place simPlace // place in the queue, for acquire; its name is empty without a waiter
	seen  uint64   // for join: the nodes' time when the lease was last confirmed
	reads bool     // for acquire, join and renew: shared mode
	back  int64    // for release: the counter before the grant, and 1, if the vote is given back
	quiet bool     // for release: no waiter is told
}

// keep returns how long a key is kept: the script adds the grace.
func (s *simServer) keep(ttl time.Duration, t *quorum.Terms) time.Time {
	grace := t.Grace
	if s.broken.grace {
		grace = ttl / 1000
	}
	return s.ending(ttl + (grace + time.Millisecond - 1).Truncate(time.Millisecond))
}

// simQueueLife is how long a wait queue stays if no waiter asks again.
const simQueueLife = 150 * time.Second

// enter adds a place to the queue, unless the queue has it already.
func (s *simServer) enter(p simPlace) {
	s.dissolves = s.ending(simQueueLife)
	if slices.ContainsFunc(s.queue, func(q simPlace) bool { return q.place == p.place }) {
		return
	}
	i := slices.IndexFunc(s.queue, func(q simPlace) bool {
		return q.since > p.since || q.since == p.since && q.place > p.place
	})
	if i < 0 {
		i = len(s.queue)
	}
	s.queue = slices.Insert(s.queue, i, p)
}

func (s *simServer) quit(place string) {
	s.queue = slices.DeleteFunc(s.queue, func(p simPlace) bool { return p.place == place })
}

// acquire models lua/acquire.lua. The caller holds s.mu.
func (s *simServer) acquire(c simCall, t *quorum.Terms) simReply {
	k, now := s.key(), s.micros()
	x := int64(c.token)
	if x == 0 {
		x = now
	}
	x = max(min(x, now+simAhead), s.memory.meta.till+c.more)
	if !s.broken.lag {
		x = max(x, now-simLag)
	}
	if c.place.since == 0 {
		c.place.since = uint64(x)
	}
	switch me := c.place; {
	case k.free():
		s.quit(me.place)
		return s.grant(k, c, t, x)
	case k.readers != nil && c.reads:
		if one := k.readers.find(c.me); one != nil {
			s.prolong(k, c, t)
			return s.reply(one.fence, nil)
		}
		kept := func(r simReader) bool { return r.place == me.place && r.owner == "" }
		if slices.ContainsFunc(k.readers.all, kept) || !s.waits(me.since) {
			s.quit(me.place)
			return s.grant(k, c, t, x)
		}
	case k.next == "":
	case k.next == me.place:
		return s.grant(k, c, t, x)
	case me.place != "" && k.since > me.since: // that one came later, and waits on
		s.quit(me.place)
		s.enter(simPlace{k.next, k.since})
		return s.grant(k, c, t, x)
	}
	if k.owner == c.me {
		k.until = s.keep(c.ttl, t)
		return s.reply(k.fence, nil)
	}
	if c.place.place != "" {
		s.enter(c.place)
	}
	return s.held(k)
}

func (s *simServer) held(k *simKey) simReply {
	now := s.clock()
	mode, kept := driver.Exclusive, k.next != ""
	if r := k.readers; r != nil && slices.ContainsFunc(r.all, func(one simReader) bool { return one.owner != "" }) {
		mode = driver.Shared
	} else if r != nil {
		kept = true
	}
	return s.reply(0, &driver.HeldError{Holder: k.owner, Mode: mode, ReservedForWaiter: kept, RetryAfter: k.until.Sub(now.Truncate(time.Millisecond)), Server: s.name(), Clock: now})
}

// grant takes the key with a token of at least x.
func (s *simServer) grant(k *simKey, c simCall, t *quorum.Terms, x int64) simReply {
	old := int64(k.counter)
	x = max(x, old+1+c.more)
	if old == 0 || s.enters(x, old) {
		x = s.pass(x, old == 0, c.more)
	}
	s.count(k, x, c.life)
	if s.broken.first {
		k.counter -= uint64(c.more)
	}
	r := s.reply(uint64(x), nil)
	r.before = old + 1
	s.own(k, c, t, uint64(x), uint64(old), true)
	return r
}

// own makes the caller an owner of the key, beside readers if it is one. before is what the counter was.
func (s *simServer) own(k *simKey, c simCall, t *quorum.Terms, fence, before uint64, vote bool) {
	if !c.reads {
		k.clear()
		k.owner, k.fence, k.until = c.me, fence, s.keep(c.ttl, t)
		return
	}
	if k.readers == nil {
		k.clear()
		k.readers = &simReaders{base: before, votes: true}
	}
	left := slices.DeleteFunc(slices.Clone(k.readers.all), func(r simReader) bool { return r.owner == "" && r.place == c.place.place })
	k.readers = (&simReaders{left, k.readers.base, k.readers.votes}).with(simReader{owner: c.me, fence: fence, until: s.keep(c.ttl, t)}, vote)
	s.admit(k)
	s.last(k)
}

// prolong extends a reader's time.
func (s *simServer) prolong(k *simKey, c simCall, t *quorum.Terms) {
	one := *k.readers.find(c.me)
	one.until = s.keep(c.ttl, t)
	left := slices.DeleteFunc(slices.Clone(k.readers.all), func(r simReader) bool { return r.owner == c.me })
	k.readers = (&simReaders{left, k.readers.base, k.readers.votes}).with(one, false)
	s.last(k)
}

// last lets the key end with the last of its readers.
func (s *simServer) last(k *simKey) {
	k.until = time.Time{}
	for _, r := range k.readers.all {
		if r.until.After(k.until) {
			k.until = r.until
		}
	}
}

// waits reports whether a writer waits that came before since.
func (s *simServer) waits(since uint64) bool {
	s.queue = slices.DeleteFunc(s.queue, func(p simPlace) bool { return !p.reads() && p.since < since && s.lost(p) })
	return slices.ContainsFunc(s.queue, func(p simPlace) bool { return !p.reads() && p.since < since })
}

// lost reports whether the process of a place is gone.
func (s *simServer) lost(p simPlace) bool {
	process, _, _ := strings.Cut(p.place, ".")
	return s.gone[process]
}

// admit keeps the key for the readers that are first in the queue.
func (s *simServer) admit(k *simKey) {
	for len(s.queue) > 0 && s.queue[0].reads() {
		first := s.queue[0]
		s.queue = s.queue[1:]
		if s.lost(first) {
			continue
		}
		if k.readers == nil {
			k.readers = &simReaders{base: k.counter, votes: true}
		}
		k.readers = k.readers.with(simReader{place: first.place, until: s.ending(first.kept())}, true)
		s.last(k)
	}
}

// The constants of lua/counter.lua, in microseconds.
const (
	simInterval = 10_000_000
	simAhead    = int64(driver.FenceSlack / time.Microsecond)
	simLag      = int64(driver.FenceLag / time.Microsecond)
)

// pass compares the clock with the mark. If the key has no counter, it raises the token, and more
// tokens before it, above the floor.
func (s *simServer) pass(x int64, missing bool, more int64) int64 {
	m := &s.memory.mark
	m.high, m.floor = s.looked()
	if missing && x <= m.floor+more {
		x = m.floor + more + 1
	}
	m.top = max(m.top, x)
	return x
}

// looked returns the mark's clock after a look, and its floor, above all tokens until the last look
// if the clock has fallen.
func (s *simServer) looked() (high, floor int64) {
	m, now, slack := &s.memory.mark, s.micros(), int64(simInterval)
	if s.broken.hasty {
		slack = 0
	}
	if now >= m.high-slack {
		return max(m.high, now), m.floor
	}
	if s.broken.floor {
		return now, m.floor
	}
	return now, max(m.floor, m.top+simInterval)
}

func (s *simServer) enters(x, old int64) bool {
	return !s.broken.old && (x/simInterval != old/simInterval || x > s.micros()+simAhead && !s.broken.ahead)
}

// count sets the counter and its lifetime.
func (s *simServer) count(k *simKey, x int64, life time.Duration) {
	ahead := max(s.micros(), x) - s.micros()
	if s.broken.life {
		ahead = 0
	}
	k.counter, k.ends = uint64(x), s.ending(life+time.Duration((ahead+999)/1000)*time.Millisecond)
}

// join models lua/join.lua. The caller holds s.mu.
func (s *simServer) join(c simCall, t *quorum.Terms) simReply {
	k, x := s.key(), int64(c.token)
	refused := s.reply(0, &driver.RefusedError{RetryAfter: time.Millisecond, Reason: "the counter is above the token, or may have been"})
	old := int64(k.counter)
	above := old
	if k.readers != nil { // they may have raised the counter, and no writer has
		above = int64(k.readers.base)
	}
	switch one := k.readers.find(c.me); {
	case k.owner == c.me:
		k.until = s.keep(c.ttl, t)
		return s.reply(k.fence, nil)
	case one != nil:
		s.prolong(k, c, t)
		return s.reply(one.fence, nil)
	case k.owner != "" || k.readers != nil && !c.reads:
		return s.held(k)
	case above > x && !s.broken.join && (t.Guard == 0 || above+simLag+int64(t.Quarantine/time.Microsecond) >= int64(c.seen)):
		return refused
	case old == 0:
		if high, floor := s.looked(); x <= floor || high > int64(c.seen)+int64(c.life/time.Microsecond)-simInterval {
			return refused
		}
	}
	stored := max(x, old)
	if old == 0 || s.enters(stored, old) {
		stored = s.pass(stored, old == 0, 0)
	}
	s.count(k, stored, c.life)
	s.own(k, c, t, c.token, uint64(old), false)
	return s.reply(c.token, nil)
}

// renew models lua/renew.lua. The caller holds s.mu.
func (s *simServer) renew(c simCall, t *quorum.Terms) simReply {
	k := s.key()
	one := k.readers.find(c.me)
	switch {
	case s.broken.owner && k.owner != c.me && one == nil:
		k.counter = max(k.counter, c.least)
		return s.reply(c.token, nil)
	case c.reads && one == nil, !c.reads && k.owner != c.me:
		return s.reply(0, driver.ErrLost)
	case c.reads && one.fence != c.token, !c.reads && k.fence != c.token && !s.broken.instance:
		return s.reply(0, driver.ErrLost)
	}
	old, x := int64(k.counter), int64(max(c.token, c.least))
	if old >= x {
		x = old
	} else if old == 0 || s.enters(x, old) {
		x = s.pass(x, old == 0, 0)
	}
	s.count(k, x, c.life)
	if c.reads {
		s.prolong(k, c, t)
	} else {
		k.until = s.keep(c.ttl, t)
	}
	return s.reply(c.token, nil)
}

// release models lua/release.lua. It frees exactly this attempt's lock, with any token if the
// call's is 0. It also gives up the place quits, unless it is empty.
func (s *simServer) release(c simCall, quits string) simReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.note()
	k := s.key()
	mine := c.me != "" && k.owner == c.me && (c.token == 0 || k.fence == c.token)
	readers := k.readers
	if one := readers.find(c.me); one != nil && (c.token == 0 || one.fence == c.token) {
		mine = true
		k.readers = readers.without(func(r simReader) bool { return r.owner == c.me }, c.back != 0)
		if c.back != 0 && readers.votes && k.readers == nil {
			k.counter = readers.base
		}
	}
	if quits != "" {
		s.quit(quits)
		mine = mine || k.free() || k.next == quits || readers != nil
		k.readers = k.readers.without(func(r simReader) bool { return r.owner == "" && r.place == quits }, true)
	}
	if !mine {
		return s.reply(0, driver.ErrLost)
	}
	if readers == nil {
		if c.back != 0 && k.counter == k.fence {
			k.counter = uint64(c.back - 1)
		}
		k.clear()
	}
	if !c.quiet {
		s.admit(k)
	}
	if k.readers != nil {
		s.last(k)
		return s.reply(0, nil)
	}
	for !c.quiet && len(s.queue) > 0 && k.free() {
		first := s.queue[0]
		s.queue = s.queue[1:]
		if s.lost(first) {
			if s.admit(k); k.readers != nil {
				break
			}
			continue
		}
		kept := first.kept()
		if s.broken.kept {
			kept *= 40
		}
		k.next, k.since, k.until = first.place, first.since, s.ending(kept)
	}
	return s.reply(0, nil)
}

// These methods disturb a server.

// lose lets a client's process disappear: messages to it reach nobody.
func (s *simServer) lose(n *simNode) {
	n.mu.Lock()
	process, _, _ := strings.Cut(n.place, ".")
	n.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if process != "" {
		s.gone[process] = true
	}
}

func (s *simServer) pause(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = time.Now().Add(d)
}

// step sets the clock, and removes the keys that have ended by it, as servers do by themselves.
func (s *simServer) step(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setClock(s.offset + d)
}

func (s *simServer) setClock(offset time.Duration) {
	s.offset, s.steppedAt = offset, s.contacts
	s.key()
	s.note()
}

// expire drops the lock but keeps the counter.
func (s *simServer) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory.lock.clear()
	s.note()
}

// restart begins a new process with the memory of an earlier write. back chooses the write,
// given the number of the last one.
func (s *simServer) restart(back func(last int) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process++
	s.run = fmt.Sprintf("sim-%d.%d", s.id, s.process)
	s.texts, s.marked = map[simText]bool{}, false
	i := max(back(len(s.written)-1), 0)
	s.memory, s.written = s.written[i], s.written[:i+1]
	s.key() // keys that have ended are not loaded
	s.note()
}

// flush models FLUSHALL.
func (s *simServer) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory = simMemory{}
	s.note()
}

// isStated reports whether a client that found the server without a memory may be stating this
// to it right now. The server must not be emptied at that moment, because nothing on it would
// show that it granted a lock to another client.
func (s *simServer) isStated() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.stated)
}

// unload models SCRIPT FLUSH. evict drops some scripts, but none that SCRIPT LOAD loaded.
func (s *simServer) unload() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.texts, s.marked = map[simText]bool{}, false
}

func (s *simServer) evict(drop func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for op := simAcquire; op <= simRenew; op++ {
		if drop() {
			for t := range s.texts {
				if t.op == op {
					delete(s.texts, t)
				}
			}
		}
	}
}

// remembers reports whether the server has a memory for the restart guard.
func (s *simServer) remembers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.memory.meta.run != ""
}
