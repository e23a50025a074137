package redlock

import (
	"context"
	"fmt"
	"slices"
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

	mu      sync.Mutex
	process int // how often it was started
	started int64
	memory  simMemory
	line    []simPlace       // in memory as well, but protects nothing
	written []simMemory      // memory after each write, the newest last: what an RDB file or an AOF may bring back
	texts   map[simText]bool // the script cache
	marked  bool             // the marker is in it

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
	grace   bool // a key is kept for the TTL and a thousandth
	kept    bool // a key is kept for the next in line forty times longer
	caller  bool // a release runs on the context of who asked for the lease
	hides   bool // a node that remembers says that it is new
	once    bool // a change of nodes is told to each node once
}

// simMemory is what a server keeps in its database.
type simMemory struct {
	lock simKey
	meta simMeta
}

type simKey struct {
	owner   string // empty: free, or kept for the next
	next    string // the place in line that it is kept for
	since   uint64 // and since when that one waits
	fence   uint64
	until   time.Time // by the server's clock
	counter uint64
}

// simPlace is a place in the line of those who wait.
type simPlace struct {
	place string
	since uint64
}

// simKept is for how long a key is kept for the next in line.
const simKept = 30 * time.Millisecond

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
	s := &simServer{id: id, texts: map[simText]bool{}, began: time.Now()}
	s.started = s.clock().Add(-time.Hour).Unix()
	s.note()
	return s
}

// clock is the server's. s.mu is held.
func (s *simServer) clock() time.Time {
	now := time.Now()
	return now.Add(s.offset + time.Duration(float64(now.Sub(s.began))*s.rate)).Round(0)
}

func (s *simServer) micros() int64 { return s.clock().UnixMicro() }

// key returns the lock as of now. s.mu is held.
func (s *simServer) key() *simKey {
	k := &s.memory.lock
	if !s.clock().Before(k.until) {
		k.owner, k.next = "", ""
	}
	return k
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
	case h.mode == "bootstrap" && (h.text.run != id || now > h.until), h.mode == "terms", h.mode == "settled":
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

// keep is for how long a key is kept: the script adds the grace.
func (s *simServer) keep(ttl time.Duration, t *driver.Terms) time.Time {
	grace := t.Grace
	if s.broken.grace {
		grace = ttl / 1000
	}
	return s.clock().Add(ttl + grace)
}

// enter puts a place into the line, or leaves it where it is.
func (s *simServer) enter(p simPlace) {
	if slices.ContainsFunc(s.line, func(q simPlace) bool { return q.place == p.place }) {
		return
	}
	i := slices.IndexFunc(s.line, func(q simPlace) bool { return q.since > p.since })
	if i < 0 {
		i = len(s.line)
	}
	s.line = slices.Insert(s.line, i, p)
}

func (s *simServer) quit(place string) {
	s.line = slices.DeleteFunc(s.line, func(p simPlace) bool { return p.place == place })
}

// acquire is lua/acquire.lua and lua/join.lua. s.mu is held.
func (s *simServer) acquire(req *driver.Request, t *driver.Terms) simReply {
	k, now := s.key(), s.clock()
	me := simPlace{place: request(req.Owner)}
	if req.Quorum != nil && req.ExactFence == 0 {
		me.since = req.Quorum.WaitingSince
	}
	waits := me.since != 0
	held := func() simReply {
		if waits {
			s.enter(me)
		}
		return s.reply(0, &driver.HeldError{Holder: k.owner, ReservedForWaiter: k.next != "", RetryAfter: k.until.Sub(now), Server: s.name(), Clock: now})
	}
	if k.next != "" {
		switch {
		case waits && k.next == me.place:
		case waits && k.since > me.since: // that one came later, and waits on
			s.enter(simPlace{k.next, k.since})
		default:
			return held()
		}
		k.next = ""
	}
	switch {
	case k.owner == req.Owner:
		k.until = s.keep(req.TTL, t)
		return s.reply(k.fence, nil)
	case k.owner != "":
		return held()
	case req.ExactFence != 0 && k.counter > req.ExactFence && !s.broken.join:
		return s.reply(0, &driver.RefusedError{RetryAfter: time.Millisecond, Reason: "the counter is above the token"})
	}
	floor := req.FenceFloor
	if m := &s.memory.meta; floor != 0 && m.run != "" {
		floor = max(floor, uint64(m.till)) // it votes, so that is over
	}
	k.fence = driver.NextFence(k.counter, floor, now)
	if req.ExactFence != 0 {
		k.fence = req.ExactFence
	}
	k.counter = max(k.counter, k.fence)
	k.owner, k.until = req.Owner, s.keep(req.TTL, t)
	if waits {
		s.quit(me.place)
	}
	return s.reply(k.fence, nil)
}

// renew is lua/renew.lua. s.mu is held.
func (s *simServer) renew(owner string, fence, least uint64, ttl time.Duration, t *driver.Terms) simReply {
	k := s.key()
	switch {
	case s.broken.owner && k.owner != owner:
		k.counter = max(k.counter, least)
		return s.reply(fence, nil)
	case k.owner != owner, k.fence != fence && !s.broken.instance:
		return s.reply(0, driver.ErrLost)
	}
	k.until = s.keep(ttl, t)
	k.counter = max(k.counter, least)
	return s.reply(fence, nil)
}

// release is lua/release.lua: it frees exactly this attempt's lock; fence 0: whatever it
// got.
func (s *simServer) release(owner string, fence uint64) simReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.note()
	k := s.key()
	if k.owner != owner || fence != 0 && k.fence != fence {
		return s.reply(0, driver.ErrLost)
	}
	k.owner = ""
	if len(s.line) > 0 {
		k.next, k.since, s.line = s.line[0].place, s.line[0].since, s.line[1:]
		k.until = s.clock().Add(simKept)
		if s.broken.kept {
			k.until = s.clock().Add(40 * simKept)
		}
	}
	return s.reply(0, nil)
}

// What may happen to a server.

// sleep is what the server's clock does while all clients sleep.
func (s *simServer) sleep(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offset += d
	s.right += d
	s.key()
	s.note()
}

// forgetCounter ends the counter of a key that was used last more than so long ago.
func (s *simServer) forgetCounter(unused time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.key(); k.owner == "" && int64(k.counter) < s.clock().Add(-unused).UnixMicro() {
		k.counter = 0
		s.note()
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
