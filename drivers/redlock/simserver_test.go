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
)

// simServer is the model of one node's server: what it remembers, a clock of its own
// that may drift and step, processes that end and begin, and what the scripts of a real
// one do. Its parts can be taken out, so that the simulation can show that it notices.
type simServer struct {
	id      int
	broken  simBroken
	durable bool // it forgets nothing that it has acknowledged

	mu        sync.Mutex
	at        time.Time // what the clock says; zero: see clock
	process   int       // how often it was started
	started   int64
	memory    simMemory
	line      []simPlace       // in memory as well, but protects nothing
	dissolves time.Time        // when nobody in line has asked for long
	gone      map[string]bool  // processes that are told nothing any more
	written   []simMemory      // memory after each write, the newest last: what an RDB file or an AOF may bring back
	texts     map[simText]bool // the script cache
	marked    bool             // the marker is in it

	began     time.Time
	offset    time.Duration
	right     time.Duration // what offset is while the clock is right
	rate      float64       // of its clock, minus one
	paused    time.Time     // it answers nothing until then
	stated    time.Time     // until when the statement that it is new may be under way
	contacts  int           // scripts that compared the clock with the high-water mark
	steppedAt int           // contacts when the clock was last set
}

// simBroken are the parts of a node's scripts that protect tokens, and those of the
// restart guard.
type simBroken struct {
	owner      bool // a raise is not owner-checked
	instance   bool // a raise or a renewal matches the owner, not the acquisition
	join       bool // a join takes the key whatever the counter is
	perishable bool // a request that arrives late takes effect

	guard   bool // a node in quarantine votes
	bond    bool // a script does not look whether the last handshake was its own process'
	repair  bool // a handshake takes the process that its text is for for the one that it runs in
	apart   bool // a handshake and the loading of its text are two commands
	others  bool // a quarantine is counted by the node's own clock
	high    bool // there is no high-water mark
	ownStep bool // a clock that was set back ends its quarantine by itself
	nodes   bool // the number of nodes is not compared
	onePass bool // terms change at once
	new     bool // a node is new as long as it has no memory, whatever process was looked at, and when
	grace   bool // a key is kept for the TTL and a thousandth
	kept    bool // a key is kept for the next in line forty times longer
	caller  bool // a release runs on the context of who asked for the lease
	hides   bool // a node that remembers says that it is new
	once    bool // a change of nodes is told to each node once
}

// simMemory is what a server keeps in its database.
type simMemory struct {
	lock simKey
	mark simMark
	meta simMeta
}

// simMark is what the counters of a server have in common: see lua/counter.lua. It is in
// microseconds; high is zero where there is none.
type simMark struct{ high, top, floor int64 }

type simKey struct {
	owner   string // empty: free, or kept for the next
	next    string // the place in line that it is kept for
	since   uint64 // and since when that one waits
	fence   uint64
	until   time.Time // by the server's clock
	counter uint64    // zero: there is none
	ends    time.Time // of the counter
}

func (k *simKey) free() bool { return k.owner == "" && k.next == "" }

// simPlace is a place in the line of those who wait. Its name ends with for how many
// milliseconds the key is kept for it, behind a dot, and begins with its process, before one.
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

// simMeta is what a server remembers for the restart guard: see lua/guard.lua. Times are
// in microseconds.
type simMeta struct {
	run        string // empty: there is none
	terms      driver.Terms
	till, high int64
	next       driver.Terms // that it is changing to; N is zero: none
	from       int64        // from when they hold; zero: not settled
	why        string
}

// simText is the text of a script: bound to a process and to terms.
type simText struct {
	run   string
	terms driver.Terms
	op    simOp
}

type simOp uint8

const (
	simAcquire simOp = iota
	simJoin
	simRenew
)

// simPending is the end of a quarantine that has not begun.
const simPending int64 = 1<<53 - 1

func newSimServer(id int) *simServer {
	s := &simServer{id: id, texts: map[simText]bool{}, gone: map[string]bool{}, began: time.Now()}
	s.started = s.clock().Add(-time.Hour).Unix()
	s.note()
	return s
}

// clock is the server's. s.mu is held.
func (s *simServer) clock() time.Time {
	if !s.at.IsZero() {
		return s.at
	}
	now := time.Now()
	return now.Add(s.offset + time.Duration(float64(now.Sub(s.began))*s.rate)).Round(0)
}

func (s *simServer) micros() int64 { return s.clock().UnixMicro() }

// key returns the lock as of now. s.mu is held.
func (s *simServer) key() *simKey {
	k := &s.memory.lock
	if s.over(k.until) {
		k.owner, k.next = "", ""
	}
	if s.over(k.ends) {
		k.counter = 0
	}
	if s.over(s.dissolves) {
		s.line = nil
	}
	return k
}

// over reports whether what ends then has ended: servers count whole milliseconds.
func (s *simServer) over(end time.Time) bool { return s.clock().Truncate(time.Millisecond).After(end) }

// ending returns the end of what is kept for so long, from now.
func (s *simServer) ending(d time.Duration) time.Time {
	return s.clock().Truncate(time.Millisecond).Add((d + time.Millisecond - 1).Truncate(time.Millisecond))
}

// note writes the memory down. s.mu is held.
func (s *simServer) note() {
	if n := len(s.written); n == 0 || s.written[n-1] != s.memory {
		s.written = append(s.written, s.memory)
	}
}

// simReply is what every operation answers.
type simReply struct {
	code   simCode
	err    error
	fence  uint64
	clock  time.Time
	server string

	now, till, from int64
	terms           driver.Terms
	none            bool // there is no meta
	why             string
	memory          driver.Memory
	unsent          bool // of the operation itself nothing was sent
}

type simCode uint8

const (
	simDone        simCode = iota
	simNoScript            // the text is not in the cache
	simStale               // it is another process' than that of the last handshake
	simQuarantined         // no vote yet
	simOtherQuorum         // of another number of nodes
	simOtherTerms          // of other terms
	simChanged             // nothing was done: it is not what was looked at, and taken for new
	simUnknown             // nothing was done: the other nodes are not known
)

func (s *simServer) reply(fence uint64, err error) simReply {
	return simReply{err: err, fence: fence, clock: s.clock(), server: s.name(), now: s.micros()}
}

func (s *simServer) name() string { return fmt.Sprintf("sim-%d.%d", s.id, s.process) }

// late is the refusal of a request that arrived after its end.
func (s *simServer) late(notAfter time.Time) bool {
	return !s.broken.perishable && !notAfter.IsZero() && s.clock().After(notAfter)
}

// hello is lua/hello.lua, and look lua/look.lua with the question for the marker.
func (s *simServer) hello() simReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reply(0, nil)
}

func (s *simServer) look(quarantine time.Duration) simReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.reply(0, nil)
	up := s.clock().Unix() - s.started // whole seconds, of clocks of whole seconds
	switch {
	case s.memory.meta.run != "":
		r.memory, r.terms = driver.MemoryKept, s.memory.meta.terms
	case s.marked:
		r.memory = driver.MemoryFlushed
	case time.Duration(up-1)*time.Second > quarantine:
		r.memory = driver.MemoryUnused
	default:
		r.memory = driver.MemoryNew
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
	others      int64 // 0: there are none; -1: not known
	mode        string
	until       int64        // when it is not new any more
	terms       driver.Terms // to take where there is no meta, or to change to
	load, check bool         // what it does of the two
}

// handshake is lua/handshake.lua.
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
	no := func(code simCode, terms driver.Terms) simReply {
		return simReply{code: code, clock: s.clock(), server: s.name(), now: now, terms: terms}
	}
	known, terms := m.run != "", m.terms
	switch {
	case known && h.mode != "nodes" && m.terms.N != h.terms.N && !s.broken.nodes:
		return no(simOtherQuorum, m.terms)
	case known:
	case h.terms != h.text.terms:
		return no(simOtherTerms, h.terms)
	case h.mode == "bootstrap" && (h.text.run != id || now > h.until) && !s.broken.new, h.mode == "terms", h.mode == "settled":
		return no(simChanged, h.terms)
	case h.mode != "bootstrap" && h.mode != "nodes" && h.others < 0 && !s.broken.others:
		r := no(simUnknown, h.terms)
		r.till, r.why = simPending, "new"
		return r
	default:
		terms = h.terms
	}
	if m.from > 0 && now >= m.from {
		terms, m.next, m.from = m.next, driver.Terms{}, 0
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
	case h.mode == "nodes":
		n := h.terms.N
		till, why, terms = fresh, "nodes", terms.Merge(terms)
		terms.N = n
	case !known && h.mode != "bootstrap":
		till, why = fresh, "new"
	case !known:
		till, why = 0, ""
	case m.run != id && h.mode != "durable":
		till, why = fresh, "restart"
	case m.run == id && till > now:
		till = min(till, fresh)
	}
	switch {
	case h.mode == "terms":
		terms = terms.Merge(h.terms)
		m.next, m.from = driver.Terms{}, 0
		if terms != h.terms {
			m.next = h.terms
		}
		if s.broken.onePass {
			terms, m.next = h.terms, driver.Terms{}
		}
	case h.mode == "settled" && m.next.N != 0:
		switch {
		case m.next != h.terms || id != h.text.run:
			return no(simChanged, terms)
		case h.others < 0:
			return no(simUnknown, terms)
		}
		m.from = max(now, h.others) + quarantine + int64(terms.Grace/time.Microsecond)
	}
	high := m.high
	if m.run != id && (!known || h.mode != "durable") {
		high = now
	}
	s.memory.meta = simMeta{run: id, terms: terms, till: till, high: high, next: m.next, from: m.from, why: why}
	r := s.reply(0, nil)
	r.server, r.till, r.terms, r.from, r.why = id, till, terms, m.from, why
	if id == h.text.run && terms != h.text.terms {
		r.code = simOtherTerms
	}
	return r
}

// evalsha is a script with lua/time.lua and lua/guard.lua before it.
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

// plain is a script without the guard.
func (s *simServer) plain(notAfter time.Time, body func() simReply) simReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.note()
	if s.late(notAfter) {
		return s.reply(0, context.DeadlineExceeded)
	}
	return body()
}

// simCall is what a script is called with.
type simCall struct {
	me    string        // owner/attempt
	ttl   time.Duration // without the grace
	token uint64        // that acquire proposes, or 0; that a join is for; that a renewal is of
	least uint64        // of the counter, after a renewal
	life  time.Duration // of the counter, after its token

	place simPlace // in line, of acquire; its name is empty where nobody waits
	seen  uint64   // the nodes' time when the lease was last confirmed, of a join
}

// keep is for how long a key is kept: the script adds the grace.
func (s *simServer) keep(ttl time.Duration, t *driver.Terms) time.Time {
	grace := t.Grace
	if s.broken.grace {
		grace = ttl / 1000
	}
	return s.ending(ttl + (grace + time.Millisecond - 1).Truncate(time.Millisecond))
}

// simLineLife is how long a line stays when nobody in it asks again.
const simLineLife = 150 * time.Second

// enter puts a place into the line, or leaves it where it is.
func (s *simServer) enter(p simPlace) {
	s.dissolves = s.ending(simLineLife)
	if slices.ContainsFunc(s.line, func(q simPlace) bool { return q.place == p.place }) {
		return
	}
	i := slices.IndexFunc(s.line, func(q simPlace) bool {
		return q.since > p.since || q.since == p.since && q.place > p.place
	})
	if i < 0 {
		i = len(s.line)
	}
	s.line = slices.Insert(s.line, i, p)
}

func (s *simServer) quit(place string) {
	s.line = slices.DeleteFunc(s.line, func(p simPlace) bool { return p.place == place })
}

// acquire is lua/acquire.lua. s.mu is held.
func (s *simServer) acquire(c simCall, t *driver.Terms) simReply {
	k, now := s.key(), s.micros()
	x := int64(c.token)
	if x == 0 {
		x = now
	} else {
		x = max(min(x, now+simAhead), now-simLag, s.memory.meta.till)
	}
	if c.place.since == 0 {
		c.place.since = uint64(x)
	}
	switch me := c.place; {
	case k.free():
		s.quit(me.place)
		return s.grant(k, c, t, x)
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
	return s.reply(0, &driver.HeldError{Holder: k.owner, ReservedForWaiter: k.next != "", RetryAfter: k.until.Sub(now.Truncate(time.Millisecond)), Server: s.name(), Clock: now})
}

// grant takes the key with a token of x at least.
func (s *simServer) grant(k *simKey, c simCall, t *driver.Terms, x int64) simReply {
	old := int64(k.counter)
	x = max(x, old+1)
	if old == 0 || s.enters(x, old) {
		x = s.pass(x, old == 0)
	}
	s.count(k, x, c.life)
	k.owner, k.next, k.fence, k.until = c.me, "", uint64(x), s.keep(c.ttl, t)
	return s.reply(k.fence, nil)
}

// What lua/counter.lua does, in microseconds.
const (
	simInterval = 10_000_000
	simAhead    = int64(driver.FenceSlack / time.Microsecond)
	simLag      = int64(driver.FenceLag / time.Microsecond)
)

// pass compares the clock with the mark, and raises a token of a key without a counter above
// the floor.
func (s *simServer) pass(x int64, missing bool) int64 {
	m, now := &s.memory.mark, s.micros()
	if now < m.high {
		m.floor = max(m.floor, m.top+simInterval)
	}
	if missing && x <= m.floor {
		x = m.floor + 1
	}
	m.high, m.top = now, max(m.top, x)
	return x
}

func (s *simServer) enters(x, old int64) bool {
	return x/simInterval != old/simInterval || x > s.micros()+simAhead
}

// count sets the counter, for its life.
func (s *simServer) count(k *simKey, x int64, life time.Duration) {
	ahead := max(s.micros(), x) - s.micros()
	k.counter, k.ends = uint64(x), s.ending(life+time.Duration((ahead+999)/1000)*time.Millisecond)
}

// join is lua/join.lua. s.mu is held.
func (s *simServer) join(c simCall, t *driver.Terms) simReply {
	k, now, x := s.key(), s.micros(), int64(c.token)
	refused := s.reply(0, &driver.RefusedError{RetryAfter: time.Millisecond, Reason: "the counter is above the token, or may have been"})
	old := int64(k.counter)
	switch {
	case k.owner == c.me:
		k.until = s.keep(c.ttl, t)
		return s.reply(k.fence, nil)
	case !k.free():
		return s.held(k)
	case old > x && !s.broken.join:
		return refused
	case old == 0 && (x <= s.memory.mark.floor || now > int64(c.seen)+int64(c.life/time.Microsecond)-simInterval):
		return refused
	}
	stored := max(x, now-simLag, old)
	if old == 0 || s.enters(stored, old) {
		stored = s.pass(stored, old == 0)
	}
	s.count(k, stored, c.life)
	k.owner, k.fence, k.until = c.me, c.token, s.keep(c.ttl, t)
	return s.reply(c.token, nil)
}

// renew is lua/renew.lua. s.mu is held.
func (s *simServer) renew(c simCall, t *driver.Terms) simReply {
	k := s.key()
	switch {
	case s.broken.owner && k.owner != c.me:
		k.counter = max(k.counter, c.least)
		return s.reply(c.token, nil)
	case k.owner != c.me, k.fence != c.token && !s.broken.instance:
		return s.reply(0, driver.ErrLost)
	}
	old, x := int64(k.counter), int64(max(c.token, c.least))
	if old >= x {
		x = old
	} else if old == 0 || s.enters(x, old) {
		x = s.pass(x, old == 0)
	}
	s.count(k, x, c.life)
	k.until = s.keep(c.ttl, t)
	return s.reply(c.token, nil)
}

// release is lua/release.lua: it frees exactly this attempt's lock; fence 0: whatever it
// got. It gives up the place that quits, unless that is empty.
func (s *simServer) release(owner string, fence uint64, quits string) simReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.note()
	k := s.key()
	mine := owner != "" && k.owner == owner && (fence == 0 || k.fence == fence)
	if quits != "" {
		s.quit(quits)
		mine = mine || k.free() || k.next == quits
	}
	if !mine {
		return s.reply(0, driver.ErrLost)
	}
	k.owner, k.next = "", ""
	for len(s.line) > 0 && k.next == "" {
		first := s.line[0]
		s.line = s.line[1:]
		process, _, _ := strings.Cut(first.place, ".")
		if s.gone[process] {
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

// What may happen to a server.

// lose makes the server know that a client's process has gone: what it tells that reaches nobody.
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

// step sets the clock. What it has ended is gone: a server looks for that by itself.
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

// expire drops the lock, and keeps the counter.
func (s *simServer) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory.lock.owner, s.memory.lock.next = "", ""
	s.note()
}

// restart begins a new process with what an earlier one had written by then: back
// chooses among the writes, of which the last has this number. aged is how long ago the
// process was started: a promoted replica is no new one.
func (s *simServer) restart(aged time.Duration, back func(last int) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process++
	s.started = s.clock().Add(-aged).Unix()
	s.texts, s.marked = map[simText]bool{}, false
	i := max(back(len(s.written)-1), 0)
	s.memory, s.written = s.written[i], s.written[:i+1]
	s.key() // what has ended by now is not loaded
	s.note()
}

// flush is FLUSHALL.
func (s *simServer) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory = simMemory{}
	s.note()
}

// isStated reports whether a client that has found it without a memory may be telling it
// so right now. It must not be emptied just then: in that instant nothing on it shows that
// it has given a lock to somebody else.
func (s *simServer) isStated() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.stated)
}

// unload is SCRIPT FLUSH; evict drops some scripts, and never one that was loaded by
// SCRIPT LOAD.
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

// remembers reports whether the server has met a guard.
func (s *simServer) remembers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.memory.meta.run != ""
}
