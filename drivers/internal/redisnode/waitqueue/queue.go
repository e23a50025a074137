// Package waitqueue keeps the waiters of this process: the keys for which they wait, the
// messages about releases, and their places in the server's queues. It talks to a server only
// through its Host.
package waitqueue

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/pubsub"
)

const (
	// lingerTopic is how long a subscription stays after the last waiter, so that the next
	// waiter of a busy lock, a moment later, finds it.
	lingerTopic = time.Second
	// A waiter that has not asked for the lock by then, and so has no place, is entered as a
	// listener, and again from time to time.
	listenAfter, listenAgain = 20 * time.Millisecond, time.Minute
	// If a lock's release will be announced, a waiter asks when the TTL ends, and after this
	// time at the latest. If its holder announces nothing, a waiter asks after pauses within
	// these bounds.
	mostUnasked            = time.Minute
	mostLate               = 10 * time.Millisecond // spread after the end of the TTL, so that not all ask at once
	minForeign, maxForeign = 10 * time.Millisecond, 200 * time.Millisecond
)

// A Host has the methods that a Queue needs of the node with the locks. They must not call the
// Queue, because they are called while it is locked, except Shard, Listen and Subscribe.
type Host interface {
	// Channel returns the name of the channel on which releases of key are announced.
	Channel(key string) string
	// Key returns the key of a lock that a message names.
	Key(lock string) string
	// Shard returns the server of a Cluster that serves key, and asks if it is unknown. Without
	// a Cluster it returns "".
	Shard(ctx context.Context, key string) (string, error)
	// KnownShard is Shard without asking. It returns false if the server is unknown, or without
	// a Cluster.
	KnownShard(key string) (string, bool)
	// Subscribe opens a connection for pub/sub.
	Subscribe(ctx context.Context, sink pubsub.Sink, channels []string) (pubsub.Subscription, error)
	// Listen adds a listener to the queue of key on the server, or removes it. kept says
	// whether the server keeps queues at all.
	Listen(key, listener string, stay bool) (kept bool, err error)
	// PassOn gives a place up, in the background, and passes the lock on if it is reserved for
	// this place.
	PassOn(key, place string)
	// Refusal returns the error of a server that does not allow pub/sub; nil: err may be temporary.
	Refusal(err error) error
	// Notify reports a notice in the background.
	Notify(kind driver.NoticeKind, err error, detail string)
	// Begin and End enclose work for which Close of the node waits.
	Begin()
	End()
	// Go runs a function that serves a connection on a goroutine.
	Go(run func())
}

// A Queue has the waiters of one process. One subscriber receives the messages about releases;
// in a Cluster one for each server, with the keys that this server serves, because nodes of a
// Cluster that forward messages to each other lose them when their link breaks. Its methods are
// safe for concurrent use. Only Watch does I/O.
type Queue struct {
	host    Host
	own     string        // the beginning of the names of waiters' own channels
	timeout time.Duration // bounds one attempt to connect
	id      string        // name of this process as a listener: random

	mu          sync.Mutex
	places      uint64 // number of places taken so far
	trip        time.Duration
	topics      map[string]*topic
	subscribers map[string]*pubsub.Subscriber // by shard
	unlisted    bool                          // the server refuses to keep wait queues
	refusal     error                         // the server's error: pub/sub is not allowed
	closed      bool
	sweep       *time.Timer
}

var _ pubsub.Listener = (*events)(nil)

// A topic is one channel.
type topic struct {
	key        string
	channel    string
	server     *pubsub.Subscriber // the subscriber that has the channel
	watchers   map[chan struct{}]struct{}
	ready      chan struct{} // closed once the server confirmed the subscription
	early      bool          // a Watch returned before the confirmation
	idle       time.Time     // when the last waiter left
	place      string        // place in the queue, from the attempt that takes it until a grant; empty: none
	since      int64         // when it took the place, by the server's clock in µs; 0: unknown yet
	handedOver time.Time     // when this process handed the lock over
	standby    *time.Timer   // fires when it must try although it is second
	listen     *time.Timer   // fires when it must be entered as a listener
	listed     time.Time     // when it was entered as a listener
	polls      int           // attempts in a row that found a holder that announces nothing
}

// New returns a queue without waiters. The names of waiters' own channels begin with own;
// timeout bounds one attempt to subscribe.
func New(host Host, own string, timeout time.Duration) *Queue {
	return &Queue{host: host, own: own, timeout: timeout, id: rand.Text()[:16], topics: map[string]*topic{}, subscribers: map[string]*pubsub.Subscriber{}}
}

// Watch subscribes to key's channel for a waiter that leaves when ctx ends. It returns when the
// server has confirmed the subscription, or after wait.
func (h *Queue) Watch(ctx, wait context.Context, key string) (<-chan struct{}, error) {
	wake, channel := make(chan struct{}, 1), h.host.Channel(key)
	shard, err := h.host.Shard(wait, key)
	if err != nil {
		return nil, err
	}
	t, ready, err := h.join(key, channel, shard, wake)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { h.leave(t, wake) })
	early := false
	select {
	case <-ready:
	case <-wait.Done():
		if err := ctx.Err(); err != nil {
			h.leave(t, wake)
			return nil, fmt.Errorf("no subscription: %w", err)
		}
		early = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refusal != nil {
		return nil, h.refusal
	}
	if h.closed {
		return nil, driver.ErrClosed
	}
	t.early = t.early || early
	h.listenSoon(t, listenAfter)
	return wake, nil
}

// listenSoon enters the topic as a listener after a while, unless it has a place by then. The
// caller holds h.mu.
func (h *Queue) listenSoon(t *topic, after time.Duration) {
	if t.place == "" && t.listen == nil && len(t.watchers) > 0 && !h.unlisted {
		h.host.Begin()
		t.listen = time.AfterFunc(after, func() {
			defer h.host.End()
			h.enlist(t)
		})
	}
}

// unlisten undoes listenSoon. The caller holds h.mu.
func (h *Queue) unlisten(t *topic) {
	if t.listen != nil && t.listen.Stop() {
		h.host.End()
	}
	t.listen = nil
}

// enlist makes the server announce the next release of a topic's lock even if no place is in
// the queue. Then it gives the waiters a value, in case of a release in between.
func (h *Queue) enlist(t *topic) {
	h.mu.Lock()
	t.listen = nil
	idle := h.closed || t.place != "" || len(t.watchers) == 0
	h.mu.Unlock()
	if idle {
		return
	}
	kept, err := h.host.Listen(t.key, "listen."+h.id, true)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.listenSoon(t, time.Second)
		return
	}
	h.unlisted = !kept
	t.listed = time.Now()
	t.wake()
	if len(t.watchers) == 0 {
		h.delist(t)
	}
}

// delist removes the topic's listener, in the background. The caller holds h.mu.
func (h *Queue) delist(t *topic) {
	if t.listed.IsZero() || h.unlisted {
		return
	}
	t.listed = time.Time{}
	h.host.Begin()
	go func() {
		defer h.host.End()
		_, _ = h.host.Listen(t.key, "listen."+h.id, false) // else it ends with the queue
	}()
}

// PollAfter returns when a waiter that gets no value from its watch asks again: see
// driver.HeldError. The server shard refused it, with place or without one.
func (h *Queue) PollAfter(key, place, shard string, e *driver.HeldError) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topic(key)
	if t == nil || len(t.watchers) == 0 || e.ReservedForWaiter {
		return 0
	}
	if e.Since.IsZero() { // another library's lock: ours have a token, which is a time
		t.polls++
		pause := min(minForeign<<min(t.polls, 5), maxForeign)
		return pause/2 + mathrand.N(pause/2)
	}
	t.polls = 0
	h.move(t, shard)
	if place == "" || place != t.place || h.unlisted || !t.confirmed() || !t.server.Proven() {
		return 0
	}
	if e.RetryAfter > 0 && e.RetryAfter < mostUnasked {
		return e.RetryAfter + mathrand.N(min(e.RetryAfter/20, mostLate)+time.Millisecond)
	}
	return mostUnasked + mathrand.N(mostUnasked/20)
}

// topic returns the topic of a key, or nil. The caller holds h.mu.
func (h *Queue) topic(key string) *topic {
	if len(h.topics) == 0 {
		return nil
	}
	return h.topics[h.host.Channel(key)]
}

// subscriber returns the subscriber to a server. The caller holds h.mu.
func (h *Queue) subscriber(shard string) *pubsub.Subscriber {
	s := h.subscribers[shard]
	if s == nil {
		s = pubsub.New(h.own, (*events)(h), h.timeout, h.host.Go, h.host.Subscribe)
		h.subscribers[shard] = s
	}
	return s
}

// move moves a topic to the subscriber of the server that serves its key now, if the server
// changed. The caller holds h.mu.
func (h *Queue) move(t *topic, shard string) {
	to := h.subscriber(shard)
	if to == t.server {
		return
	}
	h.leaveQueue(t) // its place names the old subscriber
	if t.confirmed() {
		t.ready = make(chan struct{})
	}
	t.early = true
	t.server.Drop(t.channel)
	t.server = to
	to.Want(t.channel)
}

// join adds a waiter to the topic, and returns a channel that is closed when the server has
// confirmed the subscription.
func (h *Queue) join(key, channel, shard string, wake chan struct{}) (t *topic, ready <-chan struct{}, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, nil, driver.ErrClosed
	}
	if h.refusal != nil {
		return nil, nil, h.refusal
	}
	t = h.topics[channel]
	if t == nil {
		t = &topic{key: key, channel: channel, server: h.subscriber(shard), watchers: map[chan struct{}]struct{}{}, ready: make(chan struct{})}
		h.topics[channel] = t
		t.server.Want(channel)
	}
	t.watchers[wake] = struct{}{}
	return t, t.ready, nil
}

func (h *Queue) leave(t *topic, wake chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(t.watchers, wake)
	if len(t.watchers) > 0 || h.closed {
		return
	}
	h.leaveQueue(t)
	h.unlisten(t)
	h.delist(t)
	t.idle = time.Now()
	if h.sweep == nil {
		h.sweep = time.AfterFunc(lingerTopic, h.clean)
	}
}

// clean ends the subscriptions without waiters.
func (h *Queue) clean() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.sweep = nil
	idle := false
	needed := map[*pubsub.Subscriber]bool{}
	for channel, t := range h.topics {
		switch {
		case len(t.watchers) > 0:
		case time.Since(t.idle) >= lingerTopic:
			t.server.Drop(channel)
			delete(h.topics, channel)
			continue
		default:
			idle = true
		}
		needed[t.server] = true
	}
	if idle {
		h.sweep = time.AfterFunc(lingerTopic/2, h.clean)
	}
	for shard, s := range h.subscribers {
		if !needed[s] {
			s.Close()
			delete(h.subscribers, shard)
		}
	}
}

// confirmed reports whether the subscription is confirmed, or was before a break.
func (t *topic) confirmed() bool {
	select {
	case <-t.ready:
		return true
	default:
		return false
	}
}

// confirm notes that the subscription is confirmed, and reports whether it was before. The
// caller holds h.mu.
func (t *topic) confirm() (again bool) {
	again = t.confirmed()
	if !again {
		close(t.ready)
	}
	return again
}

// wake gives every waiter a value. The caller holds h.mu.
func (t *topic) wake() {
	for wake := range t.watchers {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// Close ends all subscriptions; every waiter gets a value.
func (h *Queue) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.sweep != nil {
		h.sweep.Stop()
	}
	h.end()
}

// end ends all subscriptions; every waiter gets a value. The caller holds h.mu.
func (h *Queue) end() {
	for _, s := range h.subscribers {
		s.Close()
	}
	for _, t := range h.topics {
		h.leaveQueue(t)
		h.unlisten(t)
		h.delist(t)
		t.confirm()
		t.wake()
	}
	clear(h.subscribers)
	clear(h.topics)
}

// events receives a Queue's messages.
type events Queue

// Confirmed also wakes waiters, because messages since a break are lost, as are those since a
// Watch that returned before the confirmation.
func (e *events) Confirmed(s *pubsub.Subscriber, channel string) {
	h := (*Queue)(e)
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[channel]
	if t == nil || t.server != s {
		return
	}
	if again := t.confirm(); again || t.early {
		t.early = false
		t.wake()
		t.listed = time.Time{} // the server may have restarted
		h.listenSoon(t, listenAfter)
	}
}

// Message handles two kinds: a release on a key's channel wakes all its waiters; a message on
// the subscriber's own channel is for one place.
func (e *events) Message(s *pubsub.Subscriber, channel, payload string) {
	h := (*Queue)(e)
	h.mu.Lock()
	defer h.mu.Unlock()
	if channel == s.Own {
		h.told(payload)
	} else if t := h.topics[channel]; t != nil {
		t.listed = time.Time{} // the release removed the listener from the queue
		t.wake()
		h.listenSoon(t, listenAfter)
	}
}

// Alive enters listeners again from time to time. It wakes the waiters of a key that another
// server serves now, so that they ask there.
func (e *events) Alive(s *pubsub.Subscriber) {
	h := (*Queue)(e)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.topics {
		if t.server != s || len(t.watchers) == 0 {
			continue
		}
		if t.place == "" && time.Since(t.listed) > listenAgain {
			h.listenSoon(t, 0)
		}
		if shard, known := h.host.KnownShard(t.key); known && h.subscribers[shard] != s {
			t.wake()
		}
	}
}

// Broken makes all waiters of the broken connection ask.
func (e *events) Broken(s *pubsub.Subscriber, err error) {
	h := (*Queue)(e)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	go h.host.Notify(driver.NoticeDisconnected, err, "the subscription broke: waiters poll until it stands again")
	for _, t := range h.topics {
		if t.server == s {
			t.wake()
		}
	}
}

// Refused gives pub/sub up if the server does not allow it: every waiter polls from now on. Any
// other error may be temporary.
func (e *events) Refused(err error) bool {
	h := (*Queue)(e)
	if err = h.host.Refusal(err); err == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refusal != nil || h.closed {
		return true
	}
	h.refusal = err
	h.end()
	go h.host.Notify(driver.NoticeDegraded, err, "pub/sub is not allowed: waiters poll")
	return true
}
