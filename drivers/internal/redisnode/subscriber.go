package redisnode

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
	// Between attempts to subscribe again after a break.
	minBackoff, maxBackoff = 20 * time.Millisecond, 2 * time.Second
	// quiet is how often a subscriber's connection is asked whether it still lives: one that
	// does not answer for half as long again is broken.
	quiet = 2 * time.Second
)

var errSilent = errors.New("the connection of the subscription does not answer")

// A listener is told what a subscriber hears, by the subscriber's own goroutines: its
// methods may lock what the subscriber's methods are called under.
type listener interface {
	// confirmed says that the server confirmed a channel: for the first time, or again after a
	// break.
	confirmed(s *subscriber, channel string)
	// message brings what was published on a channel.
	message(s *subscriber, channel, payload string)
	// alive says that the connection still answers: every two seconds.
	alive(s *subscriber)
	// broken says that the connection broke, and that what is published until a channel is
	// confirmed again is lost.
	broken(s *subscriber, err error)
	// refused reports whether err says that the server does not allow pub/sub at all. The
	// subscriber then ends.
	refused(err error) bool
}

// A subscriber keeps the channels that it is told subscribed on one connection to one
// server, and opens another when that breaks. There is a connection while a channel is
// wanted. Its methods do no I/O and are safe for concurrent use.
type subscriber struct {
	id       string // random
	own      string // its own channel: no other subscriber has it
	listener listener
	connect  func(ctx context.Context, sink Sink, channels []string) (Subscription, error)
	timeout  time.Duration // of one attempt to connect
	wg       *tracker

	more chan struct{} // there are changes, or the end
	end  chan struct{} // closed by close

	mu      sync.Mutex
	running bool
	wanted  map[string]struct{}
	changed map[string]struct{} // wanted, or not any more, since the last command
	conn    *connection         // nil: none
	closed  bool
}

// A connection is one connection of a subscriber. Its fields are the subscriber's to lock.
type connection struct {
	subscriber *subscriber
	sub        Subscription
	there      map[string]struct{} // channels that a command was sent for
	heard      time.Time           // when the server last said something
	proven     bool                // the server confirmed the subscriber's own channel
	lost       chan error          // why it broke
}

// newSubscriber returns a subscriber whose own channel begins with own.
func newSubscriber(own string, l listener, timeout time.Duration, wg *tracker, connect func(context.Context, Sink, []string) (Subscription, error)) *subscriber {
	id := rand.Text()[:16]
	return &subscriber{
		id: id, own: own + id, listener: l, connect: connect, timeout: timeout, wg: wg,
		more: make(chan struct{}, 1), end: make(chan struct{}),
		wanted: map[string]struct{}{}, changed: map[string]struct{}{},
	}
}

// want subscribes to a channel.
func (s *subscriber) want(channel string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.wanted[channel] = struct{}{}
	s.changed[channel] = struct{}{}
	if !s.running {
		s.running = true
		s.wg.add()
		go s.run()
	}
	s.signal()
}

// drop ends the subscription to channels, and with the last of them the connection.
func (s *subscriber) drop(channels ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, channel := range channels {
		delete(s.wanted, channel)
		s.changed[channel] = struct{}{}
	}
	s.signal()
}

// proven reports whether what is published on the confirmed channels is heard: the
// connection has answered lately.
func (s *subscriber) proven() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn != nil && s.conn.proven && time.Since(s.conn.heard) <= 2*quiet
}

// close ends the subscriber for good, and whatever its connection waits for.
func (s *subscriber) close() {
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

// signal wakes run. s.mu is held.
func (s *subscriber) signal() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// run connects, and serves the connection, until nothing is wanted.
func (s *subscriber) run() {
	defer s.wg.done()
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
				continue // sleep finds that nothing is wanted
			}
			if proven {
				pause = 0
			}
			if !s.listener.refused(err) && proven {
				s.listener.broken(s, err)
			}
		} else {
			s.listener.refused(err)
		}
		pause = min(max(2*pause, minBackoff), maxBackoff)
	}
}

// sleep pauses, and reports whether a connection is still needed; run ends otherwise.
func (s *subscriber) sleep(pause time.Duration) bool {
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

// open opens a connection and subscribes to all channels. Its own comes first, so that it is
// confirmed before any other.
func (s *subscriber) open() (*connection, error) {
	c := &connection{subscriber: s, heard: time.Now(), there: map[string]struct{}{}, lost: make(chan error, 1)}
	s.mu.Lock()
	clear(s.changed)
	maps.Copy(c.there, s.wanted)
	channels := slices.AppendSeq([]string{s.own}, maps.Keys(s.wanted))
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

// serve sends what changes, and asks now and then whether the connection lives, until it
// breaks or nothing is wanted.
func (s *subscriber) serve(c *connection) error {
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
			// Its own channel once more needs no right beside.
			ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
			_ = c.sub.Add(ctx, s.own)
			cancel()
		case err := <-c.lost:
			return err
		case <-s.end:
			return nil
		}
	}
}

// changes returns what is to be sent.
func (s *subscriber) changes(c *connection) (add, remove []string, silent, over bool) {
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

// hear notes that the server said something, which proves the connection if proof is set. It
// reports whether it was proven before, and whether it is this connection that counts.
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
	own := channel == s.own
	switch before, counts := c.hear(own); {
	case !counts, own && !before:
	case own:
		s.listener.alive(s)
	default:
		s.listener.confirmed(s, channel)
	}
}

func (c *connection) message(channel, payload string) {
	if _, counts := c.hear(false); counts {
		c.subscriber.listener.message(c.subscriber, channel, payload)
	}
}

func (c *connection) broke(err error) {
	select {
	case c.lost <- err:
	default:
	}
}
