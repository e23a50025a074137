package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/redlock-go/redlock/driver"
)

// A session is one ZooKeeper session, with a timeout for leases of one TTL. When the servers
// end it, another session replaces it.
type session struct {
	b     *Backend
	class time.Duration // the class of its leases' TTLs
	conn  *zk.Conn
	lost  chan struct{} // closed when it has expired, or must have
	wake  chan struct{} // has a value when run has something to do
	done  chan struct{} // closed when run has returned
	ctx   context.Context
	stop  context.CancelFunc
	asks  sync.WaitGroup

	mu       sync.Mutex
	hosts    []string
	next     int
	timeout  time.Duration // what the servers gave
	attached bool          // a server serves the session
	known    bool          // it has been attached before
	since    time.Time     // of attached
	authed   bool          // the user's password was sent
	changed  chan struct{} // closed and replaced when attached or dead changes
	dead     error         // why it can no longer be used
	orderly  bool          // the servers were told that it ends
	link     *link
	fails    int    // consecutive connections that failed
	slow     int    // of these, those that had no answer in time
	reason   string // the error of the last of them
	proven   time.Time
	touches  []time.Time
	users    int                      // attempts and leases
	idle     time.Time                // since when it has no users
	retired  bool                     // another session has taken its place
	watches  map[string]chan struct{} // by node; closed when it is deleted or changes
}

// How long a session without users is kept, and the longest time between two requests that
// check the server.
const (
	longestIdle  = time.Minute
	longestTouch = time.Second
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

// newSession makes a session, with one user.
func (b *Backend) newSession(class time.Duration) (*session, error) {
	s := &session{
		b: b, class: class, lost: make(chan struct{}), wake: make(chan struct{}, 1),
		done: make(chan struct{}), changed: make(chan struct{}), since: time.Now(), users: 1, watches: map[string]chan struct{}{},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.mu.Lock() // the client's goroutine calls back at once
	conn, _, err := zk.Connect(b.hosts, sessionTimeout(class), zk.WithDialer(s.dial), zk.WithHostProvider(s), zk.WithEventCallback(s.event),
		zk.WithLogger(silence{}), zk.WithLogInfo(false), zk.WithMaxConnBufferSize(256<<10))
	s.conn = conn
	s.mu.Unlock()
	if err != nil {
		s.stop()
		return nil, err
	}
	go s.run()
	return s, nil
}

// silence discards the client library's log.
type silence struct{}

func (silence) Printf(string, ...any) {}

// Init implements zk.HostProvider. Names are resolved when they are dialled.
func (s *session) Init(hosts []string) error {
	s.hosts = hosts // under s.mu, which newSession holds
	return nil
}

// Len implements zk.HostProvider.
func (s *session) Len() int { return len(s.hosts) }

// Next implements zk.HostProvider. The client checks whether it was closed only when Next says
// that all hosts were tried.
func (s *session) Next() (host string, tried bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = (s.next + 1) % len(s.hosts)
	return s.hosts[s.next], s.dead != nil
}

// Connected implements zk.HostProvider.
func (s *session) Connected() {}

// dial connects to a server, after a pause if earlier connections failed.
func (s *session) dial(network, addr string, _ time.Duration) (net.Conn, error) {
	s.mu.Lock()
	fails := s.fails
	s.fails++
	slow, dead, orderly := s.slow, s.dead, s.orderly
	s.mu.Unlock()
	if dead != nil && !orderly {
		return nil, dead
	}
	if fails > 0 {
		select {
		case <-time.After(min(5*time.Millisecond<<min(fails, 10), 300*time.Millisecond)):
		case <-s.ctx.Done():
			return nil, s.ctx.Err()
		}
	}
	// A busy server gets more time after each round in which none answered.
	limit := s.b.silence() * time.Duration(1+min(slow/len(s.hosts), 4))
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err == nil && s.b.secure != nil {
		raw, err = handshake(ctx, raw, addr, s.b.secure)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = errors.New("no answer to a connection to " + addr)
			s.wasSlow()
		}
		s.note(err.Error())
		return nil, err
	}
	l := &link{Conn: raw, s: s, dialed: time.Now()}
	l.end = l.dialed.Add(limit)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link = l
	s.reason = addr + " does not serve"
	return l, nil
}

// wasSlow counts a connection that had no answer in time.
func (s *session) wasSlow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slow++
}

func handshake(ctx context.Context, raw net.Conn, addr string, secure *tls.Config) (net.Conn, error) {
	cfg := secure.Clone()
	if cfg.ServerName == "" {
		cfg.ServerName, _, _ = net.SplitHostPort(addr)
	}
	c := tls.Client(raw, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // useless
		return nil, err
	}
	return c, nil
}

// note stores why there is no session.
func (s *session) note(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reason = why
}

// why returns the error that note stored, while there is no session.
func (s *session) why() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attached {
		return ""
	}
	return s.reason
}

// event gets changes of the session's state and of nodes that are watched, on a goroutine of the
// client.
func (s *session) event(e zk.Event) {
	if e.Type != zk.EventSession {
		s.fire(e.Path)
		return
	}
	switch e.State {
	case zk.StateHasSession:
		s.attach()
	case zk.StateDisconnected:
		s.detach()
	case zk.StateExpired:
		s.die(errExpired, false)
	}
}

// watch returns a channel that is closed when a node is deleted or changes, or the connection breaks.
// All waiters for a node share one watch, which stays as long as the node: the protocol has none that
// ends earlier. got is what is stored, unless another waiter's request is used.
func (s *session) watch(ctx context.Context, node string) (got *stored, gone <-chan struct{}, err error) {
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
	var decided atomic.Bool // who ends the watch if it cannot be made: the request, or this call
	found, err := ask(ctx, s, func(conn *zk.Conn) (*stored, error) {
		if !decided.CompareAndSwap(false, true) {
			return nil, zk.ErrConnectionClosed
		}
		data, stat, _, err := conn.GetW(node)
		if err != nil {
			s.fire(node)
		}
		return &stored{data, stat}, err
	})
	if err != nil && decided.CompareAndSwap(false, true) {
		s.fire(node)
	}
	return found, c, err
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

// watched returns the nodes that are watched.
func (s *session) watched() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.watches))
}

// attach notes that a server serves the session, which its leader has confirmed.
func (s *session) attach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timeout = s.link.timeout()
	s.proven, s.touches = s.link.dialed, nil
	s.fails, s.slow, s.reason = 0, 0, ""
	s.known = true
	if s.dead != nil {
		return
	}
	if s.b.password != nil && !s.authed { // the library does so at later connections
		conn := s.conn
		s.asks.Go(func() {
			if conn.AddAuth("digest", s.b.password) == nil {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.authed = true
				s.setAttached(s.link != nil)
			}
		})
		return
	}
	s.setAttached(true)
}

// setAttached is called under s.mu.
func (s *session) setAttached(is bool) {
	if s.attached == is || s.dead != nil {
		return
	}
	s.attached, s.since = is, time.Now()
	close(s.changed)
	s.changed = make(chan struct{})
	s.poke()
}

func (s *session) detach() {
	s.mu.Lock()
	was := s.attached
	s.setAttached(false)
	s.fireAll()
	s.link = nil
	tell := was && s.dead == nil && s.users > 0
	s.mu.Unlock()
	if tell && s.b.opt.Notify != nil {
		s.b.opt.Notify(driver.Notice{Kind: driver.NoticeDisconnected, Node: s.b.address, Detail: "a connection broke, and its session goes on at another server"})
	}
}

// die ends the use of a session.
func (s *session) die(why error, orderly bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setDead(why, orderly)
}

// setDead is called under s.mu.
func (s *session) setDead(why error, orderly bool) {
	if s.dead != nil {
		return
	}
	s.dead, s.orderly = why, orderly && s.attached
	if errors.Is(why, errExpired) || errors.Is(why, errAbandoned) { // by then its leases have ended
		close(s.lost)
	}
	s.fireAll()
	close(s.changed)
	s.changed = make(chan struct{})
	s.poke()
}

func (s *session) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run sends requests that keep the session alive, and ends the session when it has no users.
func (s *session) run() {
	defer close(s.done)
	tick := time.NewTicker(min(s.class/10, longestTouch))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.wake:
		}
		s.mu.Lock()
		now := time.Now()
		switch {
		case s.dead != nil:
		case !s.attached && s.known && now.Sub(s.since) > 2*s.timeout+10*s.b.opt.CallTimeout:
			s.setDead(errAbandoned, false)
		case s.users == 0 && (s.retired || now.Sub(s.idle) > s.b.longestIdle):
			s.setDead(errUnused, true)
		}
		dead, attached := s.dead, s.attached
		s.mu.Unlock()
		if dead != nil {
			s.finish()
			return
		}
		if attached {
			ctx, cancel := context.WithTimeout(s.ctx, 2*s.b.opt.CallTimeout)
			_, _ = ask(ctx, s, func(c *zk.Conn) (struct{}, error) { // it records its own success
				_, _, err := c.Exists("/")
				return struct{}{}, err
			})
			cancel()
		}
	}
}

// finish ends the connection, in order if the servers must delete the session's entries. It
// closes the client library when no request is under way, because the library may still write
// an answer into its caller's memory.
func (s *session) finish() {
	s.b.forget(s)
	s.mu.Lock()
	orderly, l := s.orderly, s.link
	s.mu.Unlock()
	hangUp := func() {
		s.mu.Lock()
		s.orderly = false
		s.mu.Unlock()
		s.stop()
		if l != nil {
			_ = l.Close() // it may be closed
		}
	}
	if !orderly {
		hangUp() // the request to close the session must not be sent
	}
	answered := make(chan struct{})
	go func() {
		s.asks.Wait()
		close(answered)
	}()
	select {
	case <-answered:
	case <-time.After(s.b.silence()):
		hangUp()
		<-answered
	}
	s.conn.Close()
	hangUp()
}

// close ends the session, and returns when its goroutines have ended.
func (s *session) close(orderly bool) {
	s.die(driver.ErrClosed, orderly)
	<-s.done
}

// joinUsable counts a user of the session. It reports false, and does nothing, if the session is
// over, or has had no server for so long that all servers may have forgotten it.
func (s *session) joinUsable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead != nil || !s.attached && s.known && time.Since(s.since) >= 2*s.b.opt.CallTimeout {
		return false
	}
	s.users++
	return true
}

// over returns why the session can no longer be used.
func (s *session) over() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead
}

// expired reports whether the servers have ended the session, and deleted its entries.
func (s *session) expired() bool { return errors.Is(s.over(), errExpired) }

// await waits until a server serves the session.
func (s *session) await(ctx context.Context) (*link, error) {
	for {
		s.mu.Lock()
		attached, dead, changed, l := s.attached, s.dead, s.changed, s.link
		s.mu.Unlock()
		switch {
		case dead != nil:
			return nil, dead
		case attached && l != nil:
			return l, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// ask makes one request. The client's calls take no context: a call that outlives ctx goes on
// until its connection answers or breaks, and ask breaks a connection whose server does not
// answer.
func ask[T any](ctx context.Context, s *session, request func(*zk.Conn) (T, error)) (result T, err error) {
	l, err := s.await(ctx)
	if err != nil {
		return result, err
	}
	type answer struct {
		result T
		err    error
	}
	answers := make(chan answer, 1)
	s.mu.Lock()
	dead := s.dead
	if dead == nil {
		s.asks.Add(1) // before finish waits
	}
	s.mu.Unlock()
	if dead != nil {
		return result, dead
	}
	sent := time.Now()
	go func() {
		defer s.asks.Done()
		got, err := request(s.conn)
		if err == nil || definite(err) {
			s.touched(l, sent)
		}
		answers <- answer{got, err}
	}()
	quiet := time.NewTimer(s.b.silence())
	defer quiet.Stop()
	for {
		select {
		case a := <-answers:
			return a.result, a.err
		case <-ctx.Done():
			return result, ctx.Err()
		case <-quiet.C:
			if l.heard(sent) {
				quiet.Reset(s.b.silence())
				continue
			}
			_ = l.Close() // another server may answer
		}
	}
}

// again makes a request that may be repeated, until it is answered.
func again[T any](ctx context.Context, s *session, request func(*zk.Conn) (T, error)) (T, error) {
	for {
		result, err := ask(ctx, s, request)
		if err == nil || !broken(err) || ctx.Err() != nil {
			return result, err
		}
	}
}

// mostTouches bounds how many requests of a session are remembered.
const mostTouches = 64

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

// leave ends what newSession or joinUsable began.
func (s *session) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 {
		s.idle = time.Now()
		if s.retired {
			s.poke()
		}
	}
}

// settle returns when every earlier request of the session has taken effect or never will: a
// write is answered after earlier requests, and servers refuse requests that the session sent
// over a connection to another server.
func (s *session) settle(ctx context.Context) error {
	_, err := again(ctx, s, func(c *zk.Conn) (struct{}, error) {
		_, err := c.Multi(&zk.CheckVersionRequest{Path: "/", Version: -1})
		return struct{}{}, err
	})
	if definite(err) {
		return nil
	}
	return err
}

// remove deletes a node.
func (s *session) remove(ctx context.Context, node string) error {
	_, err := again(ctx, s, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(node, -1) })
	return err
}
