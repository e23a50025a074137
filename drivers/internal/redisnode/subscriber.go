package redisnode

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

const (
	// The pauses between attempts to subscribe again after a break.
	minBackoff, maxBackoff = 20 * time.Millisecond, 2 * time.Second
	// quiet is how often a subscriber's connection is tested: if it does not answer for half as
	// long again it is broken.
	quiet = 2 * time.Second
)

var errSilent = errors.New("the connection of the subscription does not answer")

// A Sink receives the events of a Subscription, whose own goroutine calls its functions.
type Sink struct {
	Subscribed func() // the server confirmed the channel
	Message    func(payload string)
	Broken     func(error) // no further event comes; called at most once
}

// A Subscription is one connection in pub/sub mode.
type Subscription interface {
	// Again subscribes to the channel again, which the server confirms, and may wait for that. After
	// an error the subscription is of no use.
	Again(ctx context.Context) error
	// Close ends the subscription, and Again; Broken may or may not be called.
	Close()
}

// A subscriber keeps a channel of its own subscribed on one connection to one server, and reconnects if
// it breaks, as long as the queue has topics there. The queue's mutex guards its fields.
type subscriber struct {
	queue  *waitQueue
	shard  string
	id     string // random: the end of its channel's name
	topics int    // how many there are; without any it ends

	over context.Context // ends with the subscriber
	end  context.CancelFunc

	conn  *connection   // nil: none
	ready chan struct{} // closed while the connection is proven
}

// A connection is one connection of a subscriber.
type connection struct {
	sub    Subscription
	heard  time.Time  // when the server last sent something
	proven bool       // the server confirmed the channel
	lost   chan error // why it broke
}

// subscriber returns the subscriber to a server of a Cluster; otherwise there is one, to "". The caller
// holds q.mu, and has a topic there or assigns one, by which the subscriber finds its server.
func (q *waitQueue) subscriber(shard string) *subscriber {
	s := q.subscribers[shard]
	if s == nil {
		s = &subscriber{queue: q, shard: shard, id: rand.Text()[:16], ready: make(chan struct{})}
		s.over, s.end = context.WithCancel(context.Background())
		q.subscribers[shard] = s
		q.node.hearing.Add()
		q.node.wg.Go(s.run)
	}
	return s
}

// assign makes a topic one of the subscriber's. The caller holds q.mu.
func (q *waitQueue) assign(t *topic, s *subscriber) {
	t.server = s
	s.topics++
}

// drop takes a topic from the subscriber, which ends without any. The caller holds q.mu.
func (q *waitQueue) drop(s *subscriber) {
	if s.topics--; s.topics == 0 {
		s.end()
		delete(q.subscribers, s.shard)
	}
}

// listener is its entry in a queue without a place there.
func (s *subscriber) listener() string { return s.id + listens }

// listens is the end of a listener's name.
const listens = ".0.0"

// proven reports whether messages surely arrive, because the connection has answered lately. The caller
// holds q.mu.
func (s *subscriber) proven() bool {
	return s.conn != nil && s.conn.proven && time.Since(s.conn.heard) <= 2*quiet
}

// run connects, and serves the connection, until the subscriber's end.
func (s *subscriber) run() {
	q, pause := s.queue, time.Duration(0)
	defer q.node.hearing.Done()
	for s.over.Err() == nil {
		c, err := s.open()
		if err == nil {
			err = s.serve(c)
			c.sub.Close()
		}
		if s.over.Err() != nil {
			return
		}
		q.mu.Lock()
		proven := c.proven
		s.conn = nil
		if proven {
			s.ready, pause = make(chan struct{}), 0
		}
		q.mu.Unlock()
		pause = min(max(2*pause, minBackoff), maxBackoff)
		if !q.refuses(err) && proven {
			q.broken(s, err)
		}
		select {
		case <-time.After(pause):
		case <-s.over.Done():
		}
	}
}

// open opens a connection and subscribes.
func (s *subscriber) open() (c *connection, err error) {
	q, n, key := s.queue, s.queue.node, ""
	c = &connection{lost: make(chan error, 1), heard: time.Now()}
	q.mu.Lock()
	s.conn = c
	for _, t := range q.topics {
		if t.server == s {
			key = n.names.Lock(t.key)
			break
		}
	}
	q.mu.Unlock()
	defer base.Contain(&err)
	ctx, cancel := context.WithTimeout(s.over, n.cfg.CallTimeout)
	defer cancel()
	c.sub, err = n.cfg.Client.Subscribe(ctx, Sink{
		Subscribed: func() { q.subscribed(s, c) },
		Message:    func(payload string) { q.message(s, c, payload) },
		Broken: func(err error) {
			select {
			case c.lost <- err:
			default:
			}
		},
	}, key, n.waiterChannels+s.id)
	return c, err
}

// serve tests the connection now and then, until it breaks or is not needed.
func (s *subscriber) serve(c *connection) error {
	tick := time.NewTicker(quiet)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			err := errSilent
			if !s.silent(c) {
				ctx, cancel := context.WithTimeout(s.over, quiet)
				err = c.sub.Again(ctx)
				cancel()
			}
			if err != nil {
				select {
				case err = <-c.lost: // why it broke, if that was said
				default:
				}
				return err
			}
		case err := <-c.lost:
			return err
		case <-s.over.Done():
			return nil
		}
	}
}

func (s *subscriber) silent(c *connection) bool {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return time.Since(c.heard) > 3*quiet/2
}

// subscribed gets a confirmation. The first one proves the connection, and wakes all waiters, because
// messages before it are lost. Those that follow enter listeners again from time to time, and wake the
// waiters of a key that another server serves now, so that they ask there.
func (q *waitQueue) subscribed(s *subscriber, c *connection) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c.heard = time.Now()
	if s.conn != c || s.over.Err() != nil {
		return
	}
	first := !c.proven
	if c.proven = true; first {
		close(s.ready)
	}
	for _, t := range q.topics {
		if t.server != s {
			continue
		}
		if first {
			t.wake()
			t.listed = time.Time{} // the server may have restarted
			q.listenSoon(t, listenAfter)
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

// message gets a message.
func (q *waitQueue) message(s *subscriber, c *connection, payload string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c.heard = time.Now()
	if s.conn == c && s.over.Err() == nil {
		q.told(s, payload)
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
