package redisnode

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/redlock-go/redlock/driver"
)

const (
	// The pauses between attempts to subscribe again after a break.
	minBackoff, maxBackoff = 20 * time.Millisecond, 2 * time.Second
	// quiet is how often a subscriber's connection is tested: if it does not answer for half as
	// long again it is broken.
	quiet = 2 * time.Second
)

var (
	errSilent = errors.New("the connection of the subscription does not answer")
	errUnused = errors.New("no channel is wanted")
)

// A Sink receives the events of a Subscription, whose own goroutine calls its functions.
type Sink struct {
	Subscribed func(channel string) // the server confirmed it
	Message    func(channel, payload string)
	Broken     func(error) // no further event comes; called at most once
}

// A Subscription is one connection in pub/sub mode.
type Subscription interface {
	// Add and Remove send a command, and may wait for its answer. After an error the subscription is
	// of no use.
	Add(ctx context.Context, channels ...string) error
	Remove(ctx context.Context, channels ...string) error
	// Close ends the subscription, and Add and Remove; Broken may or may not be called.
	Close()
}

// A subscriber keeps the wanted channels subscribed on one connection to one server, and reconnects if
// it breaks. It has a connection only while a channel is wanted. The queue's mutex guards its fields.
type subscriber struct {
	queue   *waitQueue
	id, own string // random; its own channel, which no other subscriber has

	over context.Context // ends with the subscriber
	end  context.CancelFunc
	more chan struct{} // signals changes

	running bool
	wanted  map[string]struct{}
	changed []string    // newly wanted or dropped since the last command
	conn    *connection // nil: none
}

// A connection is one connection of a subscriber.
type connection struct {
	sub    Subscription
	there  map[string]struct{} // channels for which a command was sent
	heard  time.Time           // when the server last sent something
	proven bool                // the server confirmed the subscriber's own channel
	lost   chan error          // why it broke
}

// subscriber returns the subscriber to a server of a Cluster; otherwise there is one, to "". The caller
// holds q.mu.
func (q *waitQueue) subscriber(shard string) *subscriber {
	s := q.subscribers[shard]
	if s == nil {
		id := rand.Text()[:16]
		s = &subscriber{queue: q, id: id, own: q.node.names.Own() + id, more: make(chan struct{}, 1), wanted: map[string]struct{}{}}
		s.over, s.end = context.WithCancel(context.Background())
		q.subscribers[shard] = s
	}
	return s
}

// want subscribes to a channel, or ends the subscription to it. The caller holds q.mu.
func (s *subscriber) want(channel string, wanted bool) {
	if wanted {
		s.wanted[channel] = struct{}{}
	} else {
		delete(s.wanted, channel)
	}
	s.changed = append(s.changed, channel)
	if wanted && !s.running {
		s.running = true
		s.queue.node.wg.Go(s.run)
	}
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// proven reports whether messages on the confirmed channels surely arrive, because the connection has
// answered lately. The caller holds q.mu.
func (s *subscriber) proven() bool {
	return s.conn != nil && s.conn.proven && time.Since(s.conn.heard) <= 2*quiet
}

// run connects, and serves the connection, until no channel is wanted.
func (s *subscriber) run() {
	q, pause := s.queue, time.Duration(0)
	for s.sleep(pause) {
		c, err := s.open()
		if err == nil {
			err = s.serve(c)
			c.sub.Close()
		}
		q.mu.Lock()
		proven := c.proven
		s.conn = nil
		q.mu.Unlock()
		switch {
		case s.over.Err() != nil || errors.Is(err, errUnused):
			continue // sleep sees it
		case proven:
			pause = 0
		}
		pause = min(max(2*pause, minBackoff), maxBackoff)
		if !q.refuses(err) && proven {
			q.broken(s, err)
		}
	}
}

// sleep pauses, and reports whether a connection is still needed; run ends otherwise.
func (s *subscriber) sleep(pause time.Duration) bool {
	if pause > 0 {
		select {
		case <-time.After(pause):
		case <-s.over.Done():
		}
	}
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	s.running = s.over.Err() == nil && len(s.wanted) > 0
	return s.running
}

// open opens a connection and subscribes to all channels. The subscriber's own channel is the
// first, so that it is confirmed before any other.
func (s *subscriber) open() (c *connection, err error) {
	q, n := s.queue, s.queue.node
	c = &connection{lost: make(chan error, 1), heard: time.Now()}
	q.mu.Lock()
	c.there, s.changed, s.conn = maps.Clone(s.wanted), nil, c
	q.mu.Unlock()
	defer Contain(&err)
	ctx, cancel := context.WithTimeout(s.over, n.cfg.CallTimeout)
	defer cancel()
	c.sub, err = n.cfg.Client.Subscribe(ctx, Sink{
		Subscribed: func(channel string) { q.subscribed(s, c, channel) },
		Message:    func(channel, payload string) { q.message(s, c, channel, payload) },
		Broken: func(err error) {
			select {
			case c.lost <- err:
			default:
			}
		},
	}, slices.AppendSeq([]string{s.own}, maps.Keys(c.there)))
	return c, err
}

// serve sends the changes, and tests the connection now and then, until it breaks or is not needed.
func (s *subscriber) serve(c *connection) error {
	tick := time.NewTicker(quiet)
	defer tick.Stop()
	send := func(do func(context.Context, ...string) error, channels []string) error {
		if len(channels) == 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(s.over, quiet)
		defer cancel()
		return do(ctx, channels...)
	}
	for {
		add, remove, err := s.changes(c)
		if err == nil {
			err = send(c.sub.Add, add)
		}
		if err == nil {
			err = send(c.sub.Remove, remove)
		}
		if err != nil {
			return c.cause(err)
		}
		select {
		case <-s.more:
		case <-tick.C:
			// Subscribing to its own channel again needs no further right.
			if err := send(c.sub.Add, []string{s.own}); err != nil {
				return c.cause(err)
			}
		case err := <-c.lost:
			return err
		case <-s.over.Done():
			return errUnused
		}
	}
}

// cause returns why a connection broke if that was said, and otherwise err.
func (c *connection) cause(err error) error {
	select {
	case err = <-c.lost:
	default:
	}
	return err
}

// changes returns the channels to add and to remove.
func (s *subscriber) changes(c *connection) (add, remove []string, err error) {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	if len(s.wanted) == 0 {
		return nil, nil, errUnused
	}
	if time.Since(c.heard) > 3*quiet/2 {
		return nil, nil, errSilent
	}
	for _, channel := range s.changed {
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
	s.changed = nil
	return add, remove, nil
}

// subscribed gets a confirmation. That of the subscriber's own channel proves the connection.
func (q *waitQueue) subscribed(s *subscriber, c *connection, channel string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c.heard = time.Now()
	own, before := channel == s.own, c.proven
	c.proven = before || own
	if s.conn != c || s.over.Err() != nil {
		return
	}
	if own && before {
		q.alive(s)
	} else if t := q.topics[channel]; t != nil && t.server == s {
		t.confirm()
		t.listed = time.Time{} // the server may have restarted
		q.listenSoon(t, listenAfter)
	}
}

// alive enters listeners again from time to time, when a connection has answered: every two seconds. It
// wakes the waiters of a key that another server serves now, so that they ask there.
func (q *waitQueue) alive(s *subscriber) {
	for _, t := range q.topics {
		if t.server != s || len(t.watchers) == 0 {
			continue
		}
		if time.Since(t.listed) > listenAgain {
			q.listenSoon(t, 0)
		}
		if n := q.node; n.cfg.Cluster {
			if p := n.router.known(n.names.Lock(t.key)); p != nil && q.subscribers[p.run] != s {
				t.wake()
			}
		}
	}
}

// message gets one of two kinds: a release on a key's channel wakes all its waiters; a message on
// the subscriber's own channel is for one place.
func (q *waitQueue) message(s *subscriber, c *connection, channel, payload string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c.heard = time.Now()
	switch t := q.topics[channel]; {
	case s.conn != c || s.over.Err() != nil:
	case channel == s.own:
		q.told(payload)
	case t != nil:
		t.listed = time.Time{} // the release removed the listener from the queue
		t.wake()
		q.listenSoon(t, listenAfter)
	}
}

// broken makes all waiters of the broken connection ask.
func (q *waitQueue) broken(s *subscriber, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	go q.node.notify(driver.NoticeDisconnected, err, "the subscription broke: waiters poll until it stands again")
	for _, t := range q.topics {
		if t.server == s {
			t.wake()
		}
	}
}
