// Package pubsub keeps channels subscribed on one connection to one server, and reconnects if
// it breaks. It does not know locks.
package pubsub

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// The pauses between attempts to subscribe again after a break.
	minBackoff, maxBackoff = 20 * time.Millisecond, 2 * time.Second
	// quiet is how often a subscriber's connection is tested: if it does not answer for half as
	// long again it is broken.
	quiet = 2 * time.Second
)

var errSilent = errors.New("the connection of the subscription does not answer")

// A Sink receives the events of a Subscription. Its functions may lock a mutex that is held
// while Add and Remove are called, so a subscription calls them from its own goroutine.
type Sink struct {
	Subscribed func(channel string) // the server confirmed it
	Message    func(channel, payload string)
	Broken     func(error) // no further event comes; called at most once
}

// A Subscription is one connection in pub/sub mode.
type Subscription interface {
	// Add and Remove send the command without waiting for its answer.
	Add(ctx context.Context, channels ...string) error
	Remove(ctx context.Context, channels ...string) error
	// Close ends the subscription; Broken may or may not be called.
	Close()
}

// A Listener receives the events of a Subscriber, on the subscriber's own goroutines. Its
// methods may lock a mutex that is held while the subscriber's methods are called.
type Listener interface {
	// Confirmed says that the server confirmed a channel, for the first time or again after a
	// break.
	Confirmed(s *Subscriber, channel string)
	// Message delivers a message that was published on a channel.
	Message(s *Subscriber, channel, payload string)
	// Alive says that the connection still answers: every two seconds.
	Alive(s *Subscriber)
	// Broken says that the connection broke. Messages on a channel are lost until it is
	// Confirmed again.
	Broken(s *Subscriber, err error)
	// Refused reports whether err says that the server does not allow pub/sub at all. The
	// subscriber then ends.
	Refused(err error) bool
}

// A Subscriber keeps the wanted channels subscribed on one connection to one server, and
// reconnects if it breaks. It has a connection only while a channel is wanted. Its methods do
// no I/O and are safe for concurrent use.
type Subscriber struct {
	ID  string // random
	Own string // its own channel, which no other subscriber has

	listener Listener
	connect  func(ctx context.Context, sink Sink, channels []string) (Subscription, error)
	timeout  time.Duration // bounds one attempt to connect
	spawn    func(run func())

	more chan struct{} // signals changes, or the end
	end  chan struct{} // closed by Close

	mu      sync.Mutex
	running bool
	wanted  map[string]struct{}
	changed map[string]struct{} // newly wanted or dropped since the last command
	conn    *connection         // nil: none
	closed  bool
}

// A connection is one connection of a subscriber, whose mutex guards its fields.
type connection struct {
	subscriber *Subscriber
	sub        Subscription
	there      map[string]struct{} // channels for which a command was sent
	heard      time.Time           // when the server last sent something
	proven     bool                // the server confirmed the subscriber's own channel
	lost       chan error          // why it broke
}

// New returns a subscriber whose own channel begins with own. It connects with connect, within
// timeout. While a channel is wanted it runs on a goroutine that spawn starts.
func New(own string, l Listener, timeout time.Duration, spawn func(run func()), connect func(context.Context, Sink, []string) (Subscription, error)) *Subscriber {
	id := rand.Text()[:16]
	return &Subscriber{
		ID: id, Own: own + id, listener: l, connect: connect, timeout: timeout, spawn: spawn,
		more: make(chan struct{}, 1), end: make(chan struct{}),
		wanted: map[string]struct{}{}, changed: map[string]struct{}{},
	}
}

// Want subscribes to a channel.
func (s *Subscriber) Want(channel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.wanted[channel] = struct{}{}
	s.changed[channel] = struct{}{}
	if !s.running {
		s.running = true
		s.spawn(s.run)
	}
	s.signal()
}

// Drop ends the subscription to channels, and with the last of them the connection.
func (s *Subscriber) Drop(channels ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, channel := range channels {
		delete(s.wanted, channel)
		s.changed[channel] = struct{}{}
	}
	s.signal()
}

// Proven reports whether messages on the confirmed channels surely arrive, because the
// connection has answered lately.
func (s *Subscriber) Proven() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn != nil && s.conn.proven && time.Since(s.conn.heard) <= 2*quiet
}

// Close ends the subscriber for good, and any wait of its connection.
func (s *Subscriber) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	close(s.end)
	if s.conn != nil && s.conn.sub != nil {
		s.conn.sub.Close()
	}
}

// signal wakes run. The caller holds s.mu.
func (s *Subscriber) signal() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// run connects, and serves the connection, until no channel is wanted.
func (s *Subscriber) run() {
	for pause := time.Duration(0); s.sleep(pause); {
		c, err := s.open()
		if err == nil {
			err = s.serve(c)
			s.mu.Lock()
			proven := c.proven
			s.conn = nil
			s.mu.Unlock()
			c.sub.Close()
			if err == nil {
				continue // sleep notices that no channel is wanted
			}
			if proven {
				pause = 0
			}
			if !s.listener.Refused(err) && proven {
				s.listener.Broken(s, err)
			}
		} else {
			s.listener.Refused(err)
		}
		pause = min(max(2*pause, minBackoff), maxBackoff)
	}
}

// sleep pauses, and reports whether a connection is still needed; run ends otherwise.
func (s *Subscriber) sleep(pause time.Duration) bool {
	if pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.end:
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = !s.closed && len(s.wanted) > 0
	return s.running
}

// open opens a connection and subscribes to all channels. The subscriber's own channel is the
// first, so that it is confirmed before any other.
func (s *Subscriber) open() (*connection, error) {
	c := &connection{subscriber: s, heard: time.Now(), there: map[string]struct{}{}, lost: make(chan error, 1)}
	s.mu.Lock()
	clear(s.changed)
	maps.Copy(c.there, s.wanted)
	channels := slices.AppendSeq([]string{s.Own}, maps.Keys(s.wanted))
	s.conn = c
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	sub, err := s.connect(ctx, Sink{Subscribed: c.subscribed, Message: c.message, Broken: c.broke}, channels)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.conn = nil
		return nil, err
	}
	c.sub, c.heard = sub, time.Now()
	return c, nil
}

// serve sends the changes, and tests the connection now and then, until it breaks or no channel
// is wanted.
func (s *Subscriber) serve(c *connection) error {
	tick := time.NewTicker(quiet)
	defer tick.Stop()
	for {
		add, remove, silent, over := s.changes(c)
		ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
		switch { // a failure shows on the connection, which then breaks
		case over:
			cancel()
			return nil
		case silent:
			cancel()
			return errSilent
		case len(add) > 0:
			_ = c.sub.Add(ctx, add...)
		}
		if len(remove) > 0 {
			_ = c.sub.Remove(ctx, remove...)
		}
		cancel()
		select {
		case <-s.more:
		case <-tick.C:
			// Subscribing to its own channel again needs no further right.
			ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
			_ = c.sub.Add(ctx, s.Own)
			cancel()
		case err := <-c.lost:
			return err
		case <-s.end:
			return nil
		}
	}
}

// changes returns the channels to add and to remove.
func (s *Subscriber) changes(c *connection) (add, remove []string, silent, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.wanted) == 0 {
		return nil, nil, false, true
	}
	for channel := range s.changed {
		_, want := s.wanted[channel]
		_, there := c.there[channel]
		switch {
		case want && !there:
			add = append(add, channel)
			c.there[channel] = struct{}{}
		case there && !want:
			remove = append(remove, channel)
			delete(c.there, channel)
		}
	}
	clear(s.changed)
	return add, remove, time.Since(c.heard) > 3*quiet/2, false
}

// hear notes that the server sent something, which proves the connection if proof is set. It
// reports whether the connection was proven before, and whether it is the current one.
func (c *connection) hear(proof bool) (before, counts bool) {
	s := c.subscriber
	s.mu.Lock()
	defer s.mu.Unlock()
	before = c.proven
	c.heard = time.Now()
	c.proven = c.proven || proof
	return before, s.conn == c && !s.closed
}

func (c *connection) subscribed(channel string) {
	s := c.subscriber
	own := channel == s.Own
	switch before, counts := c.hear(own); {
	case !counts, own && !before:
	case own:
		s.listener.Alive(s)
	default:
		s.listener.Confirmed(s, channel)
	}
}

func (c *connection) message(channel, payload string) {
	if _, counts := c.hear(false); counts {
		c.subscriber.listener.Message(c.subscriber, channel, payload)
	}
}

func (c *connection) broke(err error) {
	select {
	case c.lost <- err:
	default:
	}
}
