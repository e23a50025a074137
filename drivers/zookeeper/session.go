package zookeeper

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// A session is one ZooKeeper session, with a timeout for leases of one TTL. One connection at a time
// serves it. When the servers end it, another session replaces it.
type session struct {
	base.Session
	b     *Backend
	class time.Duration // the class of its leases' TTLs
	lost  chan struct{} // closed when it has expired, or must have
	ctx   context.Context
	stop  context.CancelFunc

	mu      sync.Mutex
	id      int64 // zero: the servers have not made it yet
	secret  [16]byte
	seen    int64         // the last transaction that a server told of
	timeout time.Duration // what the servers gave
	link    *link         // nil: no server serves the session
	since   time.Time     // of link, or of its end
	changed chan struct{} // closed and replaced when link or dead changes
	dead    error         // why it can no longer be used
	reason  string        // why the last connection failed
	proven  time.Time
	touches []time.Time
	watches map[string]chan struct{} // by node; closed when it is deleted or changes
}

// The longest times between two requests that check the server, and between two connections.
const (
	longestTouch = time.Second
	longestPause = 300 * time.Millisecond
)

// sessionTimeout returns the session timeout for leases of this TTL. See the package's
// documentation.
func sessionTimeout(ttl time.Duration) time.Duration { return ttl * 3 / 2 }

// carries reports whether a session with this timeout is long enough for leases of this TTL: a
// lease can last for three quarters of the timeout, less the time between two requests.
func carries(timeout, ttl time.Duration) bool { return timeout >= ttl*4/3 }

// classOf rounds a TTL up, so that nearly equal TTLs share a session.
func classOf(ttl time.Duration) time.Duration {
	step := time.Millisecond
	for step*8 <= ttl {
		step *= 2
	}
	return (ttl + step - 1) / step * step
}

// newSession begins a session.
func (b *Backend) newSession(class time.Duration) *session {
	s := &session{
		b: b, class: class, lost: make(chan struct{}),
		changed: make(chan struct{}), since: time.Now(), watches: map[string]chan struct{}{},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if !b.calls.Go(s.run) {
		s.dead = driver.ErrClosed
	}
	return s
}

// run connects to one server after another, and ends the session when it has no users, or with ctx.
func (s *session) run(ctx context.Context) {
	defer context.AfterFunc(ctx, func() { s.die(driver.ErrClosed) })()
	tick := time.NewTicker(min(s.class/10, longestTouch))
	defer tick.Stop()
	host, fails, slow := rand.N(len(s.b.hosts)), 0, 0
	for s.alive() {
		host = (host + 1) % len(s.b.hosts)
		// A busy server gets more time after each round in which none answered.
		l, err := s.connect(s.b.hosts[host], s.b.silence()*time.Duration(1+min(slow/len(s.b.hosts), 4)))
		switch {
		case err == nil:
			slow = 0
			s.attach(l)
			s.serve(l, tick.C)
			if time.Since(l.dialed) > longestPause { // otherwise the server may greet, and end every connection at once
				fails = 0
			}
		case errors.Is(err, errExpired):
			s.die(errExpired)
			continue
		default:
			if errors.Is(err, errSlow) {
				slow++
			}
			s.mu.Lock()
			s.reason = err.Error()
			s.mu.Unlock()
		}
		base.Pause(s.ctx, min(5*time.Millisecond<<min(fails, 10), longestPause))
		fails++
	}
}

// serve uses a connection until it or the session ends, and sends requests that keep the session alive.
func (s *session) serve(l *link, tick <-chan time.Time) {
	go l.run()
	for s.alive() {
		select {
		case <-tick:
			_, _ = l.send(get("/", 0)) // its answer is a touch
		case <-s.ctx.Done():
		case <-l.done:
			return
		}
	}
	if s.b.sessions.Unused(s) { // the servers need not wait for its end
		if c, err := l.send(request{op: opClose}); err == nil {
			select {
			case <-c.done:
			case <-time.After(s.b.silence()):
			}
		}
	}
	l.hangUp()
	<-l.done
}

// alive reports whether the session goes on. It ends one that nobody uses, or that no server took up
// for longer than it can last. Before that, when all servers may have forgotten it, it is no longer
// used for other locks.
func (s *session) alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	alone := time.Duration(0)
	if s.link == nil && s.id != 0 {
		alone = time.Since(s.since)
	}
	if alone > 2*s.b.opt.CallTimeout {
		s.b.sessions.Retire(s)
	}
	switch {
	case s.dead != nil:
	case alone > 2*s.timeout+10*s.b.opt.CallTimeout:
		s.setDead(errExpired)
	case s.b.sessions.Unused(s):
		s.setDead(errUnused)
	}
	return s.dead == nil
}

// attach notes that a server serves the session.
func (s *session) attach(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link, s.since, s.reason = l, time.Now(), ""
	s.proven, s.touches = l.dialed, nil
	s.change()
}

// detach notes that no server serves it.
func (s *session) detach(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link, s.since, s.reason = nil, time.Now(), why.Error()
	s.fireAll()
	s.change()
}

// change wakes the calls that wait for a server. It is called under s.mu.
func (s *session) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// die ends the use of a session.
func (s *session) die(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead == nil {
		s.setDead(why)
	}
}

// setDead is called under s.mu.
func (s *session) setDead(why error) {
	s.dead = why
	s.b.sessions.Retire(s)
	if errors.Is(why, errExpired) { // by then its leases have ended
		close(s.lost)
	}
	s.fireAll()
	s.change()
	s.stop()
}

// watch returns a channel that is closed when a node is deleted or changes, or the connection breaks.
// All waiters for a node share one watch, which stays as long as the node: the protocol has none that
// ends earlier. got is what is stored, unless another waiter's request is used.
func (s *session) watch(ctx context.Context, node string) (got *answer, gone <-chan struct{}, err error) {
	s.mu.Lock()
	c := s.watches[node]
	shared := c != nil
	if !shared {
		c = make(chan struct{})
		s.watches[node] = c
	}
	s.mu.Unlock()
	if shared {
		return nil, c, nil
	}
	found, err := s.ask(ctx, get(node, 1))
	if err != nil {
		s.fire(node) // others look, too
		return nil, nil, err
	}
	return &found, c, nil
}

// fire ends the watch on a node.
func (s *session) fire(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.watches[node]; c != nil {
		close(c)
		delete(s.watches, node)
	}
}

// fireAll is called under s.mu.
func (s *session) fireAll() {
	for _, c := range s.watches {
		close(c)
	}
	clear(s.watches)
}

// leave ends what Backend.session began.
func (s *session) leave() { s.b.sessions.Leave(s) }

// over returns why the session can no longer be used.
func (s *session) over() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead
}

// why returns why there is no connection, empty if there is one.
func (s *session) why() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason
}

// await waits until a server serves the session.
func (s *session) await(ctx context.Context) (*link, error) {
	for {
		s.mu.Lock()
		l, dead, changed := s.link, s.dead, s.changed
		s.mu.Unlock()
		switch {
		case dead != nil:
			return nil, dead
		case l != nil:
			return l, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// ask makes one request. If ctx ends it may take effect all the same.
func (s *session) ask(ctx context.Context, q request) (answer, error) {
	l, err := s.await(ctx)
	if err != nil {
		return answer{}, err
	}
	c, err := l.send(q)
	if err != nil {
		return answer{}, err
	}
	select {
	case <-c.done:
		return c.answer, c.err
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
}

// again makes a request that may be repeated, until it is answered.
func (s *session) again(ctx context.Context, q request) (answer, error) {
	for {
		a, err := s.ask(ctx, q)
		if !errors.Is(err, errBroken) || ctx.Err() != nil {
			return a, err
		}
	}
}

// catchUp lets the session's later reads tell what a majority has by now: the asked member may be
// behind. It is a write, since a leader that was cut off answers a sync until it notices that. It
// returns when that was sent.
func (s *session) catchUp(ctx context.Context, node string) (sent time.Time, err error) {
	a, err := s.again(ctx, check(node))
	if definite(err) {
		err = nil
	}
	return a.sent, err
}

// mostTouches bounds how many requests of a session are remembered.
const mostTouches = 64

// saw notes a transaction that a server told of.
func (s *session) saw(transaction int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = max(s.seen, transaction)
}

// touched notes that a server answered a request over l.
func (s *session) touched(l *link, sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != l {
		return
	}
	if n := len(s.touches); n > 0 && sent.Sub(s.touches[n-1]) < s.timeout/(2*mostTouches) {
		return // too close to the previous one to add anything
	}
	if len(s.touches) == mostTouches {
		s.touches = slices.Delete(s.touches, 0, 1)
	}
	s.touches = append(s.touches, sent)
}

// end returns the end of a lease whose answered write was sent at this instant.
func (s *session) end(sent time.Time, ttl time.Duration) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.proven
	for _, t := range s.touches {
		if sent.Sub(t) >= s.timeout/4 && t.After(from) {
			from = t
		}
	}
	end := driver.Expires(sent, ttl)
	if latest := driver.Expires(from, s.timeout); latest.Before(end) {
		return latest
	}
	return end
}

// suits returns a refusal if the servers grant no session long enough for leases of this TTL.
func (s *session) suits(ttl time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if carries(s.timeout, ttl) {
		return nil
	}
	return &driver.RefusedError{Reason: "the servers grant sessions of up to " + s.timeout.String() + ", enough for a TTL of up to " +
		(s.timeout * 3 / 4).String() + ": use a shorter TTL, or raise maxSessionTimeout to " +
		strconv.FormatInt(sessionTimeout(ttl).Milliseconds(), 10)}
}
