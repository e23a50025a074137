package redisnode

import (
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
)

// Processes that wait for one lock have places in its queue on the server: a sorted set, ordered by
// the time since when each waits. An attempt that is refused while a waiter of this process watches
// the key takes a place. A release removes the first place from the queue, reserves the lock for it
// for a moment, so that no newcomer gets it, and tells only this place's process, on its own channel.
// So a handoff costs the same however many wait. Readers have places among writers: all who are first, up
// to a writer, are let in together (lua/readers.lua).
//
// Only the order depends on the queue. A waiter that gets no message asks again after a while, as
// without the queue. A place whose process has gone is skipped, and one whose process does not ask
// costs the moment for which the lock is reserved.

const (
	// lingerTopic is how long a subscription stays after the last waiter, so that the next
	// waiter of a busy lock, a moment later, finds it.
	lingerTopic = time.Second
	// A waiter that has not asked for the lock by then, and so has no place, is entered as a
	// listener behind all places, and again from time to time: a release that finds no place tells
	// all listeners.
	listenAfter, listenAgain = 20 * time.Millisecond, time.Minute
	// If a lock's release will be announced, a waiter asks when the TTL ends, and after this
	// time at the latest. If its holder announces nothing, a waiter asks after pauses within
	// these bounds.
	mostUnasked            = time.Minute
	mostLate               = 10 * time.Millisecond // spread after the end of the TTL, so that not all ask at once
	minForeign, maxForeign = 10 * time.Millisecond, 200 * time.Millisecond
	// The lock is reserved for a place for some round trips, within these bounds.
	leastKept, mostKept = 30 * time.Millisecond, 500 * time.Millisecond
	keptTrips           = 8
)

// A waitQueue has the waiters of this process. One subscriber receives the messages about releases;
// in a Cluster one for each server, with the keys that this server serves, because nodes of a Cluster
// that forward messages to each other lose them when their link breaks. Only watch does I/O, and what
// it starts in the background.
type waitQueue struct {
	node *Node

	mu          sync.Mutex
	places      uint64 // number of places taken so far
	trip        time.Duration
	least, most time.Duration          // that the lock is kept for a place
	topics      map[string]*topic      // by key
	subscribers map[string]*subscriber // by shard
	allowed     bool                   // the server keeps wait queues
	refusal     error                  // the server's error: pub/sub or wait queues are not allowed
	closed      bool
}

// A topic is one key with waiters. The queue's mutex guards it.
type topic struct {
	key      string
	server   *subscriber // which hears of its releases
	watchers map[chan struct{}]struct{}
	places   [2]place    // in the queue: a writer's, and a reader's
	timer    *time.Timer // see remind; without waiters, when the topic ends
	listed   time.Time   // when it was entered as a listener
	polls    int         // attempts in a row that found a holder that announces nothing
}

// A place is held from the attempt that takes it until a grant.
type place struct {
	name  string // empty: none
	since int64  // when it was taken, by the server's clock in µs; 0: unknown yet
}

// at returns the topic's place with this name; nil: there is none.
func (t *topic) at(name string) *place {
	for i := range t.places {
		if p := &t.places[i]; name != "" && p.name == name {
			return p
		}
	}
	return nil
}

// waits reports whether the topic has a place.
func (t *topic) waits() bool { return t.places[0].name != "" || t.places[1].name != "" }

// reads reports whether a place is a reader's: see lua/readers.lua.
func reads(place string) bool {
	_, rest, _ := strings.Cut(place, ".")
	return strings.HasPrefix(rest, "r")
}

func newWaitQueue(n *Node) *waitQueue {
	return &waitQueue{node: n, least: leastKept, most: mostKept, topics: map[string]*topic{}, subscribers: map[string]*subscriber{}}
}

// Watch signals when key may have become free. All waiters of a backend share one subscription. If the
// server does not confirm it within the call timeout, the waiter gets a value as soon as it does.
func (n *Node) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if n.closed.Load() {
		return nil, driver.ErrClosed
	}
	wait, cancel := context.WithTimeout(ctx, n.cfg.CallTimeout)
	defer cancel()
	wake, err := n.queue.watch(ctx, wait, key)
	return wake, n.explain(key, err)
}

// watch adds a waiter that leaves when ctx ends. It returns when the server has confirmed the
// subscription, or after wait.
func (q *waitQueue) watch(ctx, wait context.Context, key string) (<-chan struct{}, error) {
	shard := ""
	if n := q.node; n.cfg.Cluster {
		p, _, err := n.router.process(wait, n.names.Lock(key))
		if err != nil {
			return nil, err
		}
		shard = p.run
	}
	wake := make(chan struct{}, 1)
	t, ready, err := q.join(key, shard, wake)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { q.leave(t, wake) })
	select {
	case <-ready:
	case <-wait.Done():
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("no subscription: %w", err)
		}
	}
	q.mu.Lock()
	allowed := q.allowed
	q.mu.Unlock()
	if !allowed {
		q.listen(wait, t)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.over(); err != nil {
		return nil, err
	}
	q.listenSoon(t, listenAfter)
	select {
	case <-wake: // the caller asks from now on
	default:
	}
	return wake, nil
}

// over returns why nobody can watch. The caller holds q.mu.
func (q *waitQueue) over() error {
	if q.closed {
		return driver.ErrClosed
	}
	return q.refusal
}

// join adds a waiter to the topic, and returns a channel that is closed when the server has
// confirmed the subscription.
func (q *waitQueue) join(key, shard string, wake chan struct{}) (t *topic, ready <-chan struct{}, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.over(); err != nil {
		return nil, nil, err
	}
	if t = q.topics[key]; t == nil {
		t = &topic{key: key, watchers: map[chan struct{}]struct{}{}}
		q.topics[key] = t
		q.assign(t, q.subscriber(shard))
	} else if len(t.watchers) == 0 {
		t.stop()
	}
	t.watchers[wake] = struct{}{}
	return t, t.server.ready, nil
}

func (q *waitQueue) leave(t *topic, wake chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(t.watchers, wake)
	if len(t.watchers) > 0 || q.closed {
		return
	}
	q.abandon(t)
	t.stop()
	t.timer = time.AfterFunc(lingerTopic, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if len(t.watchers) == 0 && q.topics[t.key] == t {
			delete(q.topics, t.key)
			q.drop(t.server)
		}
	})
}

// abandon gives up the topic's place, and its listener. The caller holds q.mu.
func (q *waitQueue) abandon(t *topic) {
	q.leaveQueue(t)
	if !t.listed.IsZero() {
		t.listed = time.Time{}
		q.passOn(t.key, t.server.listener())
	}
}

// close ends all subscriptions; every waiter gets a value.
func (q *waitQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.endAll()
}

// endAll ends all subscriptions; every waiter gets a value. The caller holds q.mu.
func (q *waitQueue) endAll() {
	for _, s := range q.subscribers {
		s.end()
		select {
		case <-s.ready:
		default:
			close(s.ready) // nobody needs to wait for it
		}
	}
	for _, t := range q.topics {
		q.abandon(t)
		t.stop()
		t.wake()
	}
	clear(q.subscribers)
	clear(q.topics)
}

// remind sets the topic's timer. When it fires, a topic with a place asks, because the waiter before it
// may be dead; one without is entered as a listener. The caller holds q.mu.
func (q *waitQueue) remind(t *topic, after time.Duration) {
	t.stop()
	t.timer = time.AfterFunc(after, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		t.timer = nil
		switch {
		case q.closed || len(t.watchers) == 0:
		case t.waits():
			t.wake()
		default:
			n := q.node
			n.work.Go(func() { q.listen(async.Within(context.Background(), n.cfg.CallTimeout), t) })
		}
	})
}

// listenSoon enters the topic as a listener after a while, unless it has a place by then. The
// caller holds q.mu.
func (q *waitQueue) listenSoon(t *topic, after time.Duration) {
	if !t.waits() && t.timer == nil && len(t.watchers) > 0 {
		q.remind(t, after)
	}
}

// listen makes the server announce the next release of a topic's lock even if no place is in the queue,
// and then gives the waiters a value, in case of a release in between.
func (q *waitQueue) listen(ctx context.Context, t *topic) {
	n := q.node
	q.mu.Lock()
	listener := t.server.listener()
	q.mu.Unlock()
	_, err := n.ask(ctx, lua.Listen, []string{n.names.Lock(t.key), n.names.WaitQueue(t.key)}, "0", listener, queueLife)
	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil {
		if reply := ServerError(""); errors.As(err, &reply) && reply.forbids() {
			q.refuse(&driver.RefusedError{Reason: n.cfg.Addr + ": the wait queue is not allowed (+zadd +zpopmin +zrem +zrange)", Err: reply}, "the wait queue is not allowed: waiters poll")
		} else {
			q.listenSoon(t, time.Second)
		}
		return
	}
	q.allowed, t.listed = true, time.Now()
	t.wake()
	if len(t.watchers) == 0 {
		q.abandon(t)
	}
}

// pollAfter returns when a waiter that gets no value from its watch asks again: see
// driver.HeldError. The server process p refused it, with place or without one.
func (q *waitQueue) pollAfter(key, place string, p *process, e *driver.HeldError) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.topics[key]
	if t == nil || len(t.watchers) == 0 || e.ReservedForWaiter {
		return 0
	}
	if e.Since.IsZero() && e.Mode == driver.Exclusive { // another library's lock: ours have a token, which is a time
		t.polls++
		pause := min(minForeign<<min(t.polls, 5), maxForeign)
		return pause/2 + mathrand.N(pause/2)
	}
	t.polls = 0
	if q.node.cfg.Cluster {
		q.move(t, q.subscriber(p.run))
	}
	if t.at(place) == nil || !t.server.proven() {
		return 0
	}
	if e.RetryAfter > 0 && e.RetryAfter < mostUnasked {
		return e.RetryAfter + mathrand.N(min(e.RetryAfter/20, mostLate)+time.Millisecond)
	}
	return mostUnasked + mathrand.N(mostUnasked/20)
}

// move moves a topic to the subscriber of the server that serves its key now, if the server
// changed. The caller holds q.mu.
func (q *waitQueue) move(t *topic, to *subscriber) {
	if to != t.server {
		q.leaveQueue(t) // its place names the old subscriber
		q.drop(t.server)
		q.assign(t, to)
		t.listed = time.Time{}
	}
}

// wake gives every waiter a value. The caller holds q.mu.
func (t *topic) wake() {
	for wake := range t.watchers {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// stop stops the timer. The caller holds q.mu.
func (t *topic) stop() {
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
}

// takePlace gives the attempt its place in the queue, if a waiter watches the key: since when it
// waits is unknown at first.
func (q *waitQueue) takePlace(key string, shared bool) (place string, since int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.topics[key]
	if t == nil || len(t.watchers) == 0 || !t.server.proven() {
		return "", 0
	}
	p, mode := &t.places[0], "."
	if shared {
		p, mode = &t.places[1], ".r"
	}
	if p.name == "" {
		q.places++
		kept := min(max(keptTrips*q.trip, q.least), q.most)
		p.name = t.server.id + mode + strconv.FormatUint(q.places, 10) + "." + strconv.FormatInt(kept.Milliseconds(), 10)
		t.stop()
	}
	return p.name, p.since
}

// refused notes that the server refused an attempt, which has its place since now, by the
// server's clock. The call took trip. Without a place it does nothing.
func (q *waitQueue) refused(key, place string, now time.Time, trip time.Duration) {
	if place == "" {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.trip = trip
	if t := q.topics[key]; t != nil {
		if p := t.at(place); p != nil && p.since == 0 {
			p.since = now.UnixMicro()
		}
	}
}

// served ends the place of an attempt that was granted. The other waiters of
// this process, if any, then ask for their own place.
func (q *waitQueue) served(key, place string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.topics[key]
	if t == nil {
		return
	}
	if p := t.at(place); p != nil {
		p.name, p.since = "", 0
		t.stop()
		if len(t.watchers) > 1 {
			t.wake()
		}
	}
}

// leaveQueue gives up the topic's places. The caller holds q.mu.
func (q *waitQueue) leaveQueue(t *topic) {
	for i := range t.places {
		if p := &t.places[i]; p.name != "" {
			q.passOn(t.key, p.name)
			*p = place{}
			t.stop()
		}
	}
}

// passOn gives a place up, in the background, and passes the lock on if it is reserved for it, or free. No
// release has told a listener alone, so its request may come late, and then it must not let in the next one.
func (q *waitQueue) passOn(key, place string) {
	n := q.node
	n.work.Go(func() {
		t := n.releasing(n.names.Texts(key, "", 0), "", place, reads(place))
		t.silent = strings.HasSuffix(place, listens)
		_, _ = t.do(context.Background()) // else it ends by itself
	})
}

// told handles a message to this process: delay (ms), place, lock. The caller holds q.mu.
func (q *waitQueue) told(s *subscriber, payload string) {
	delay, rest, _ := strings.Cut(payload, " ")
	place, lock, ok := strings.Cut(rest, " ")
	ms, err := strconv.Atoi(delay)
	if !ok || err != nil {
		return // not a message of ours
	}
	key := strings.TrimPrefix(lock, q.node.cfg.Prefix)
	t := q.topics[key]
	switch {
	case place == s.listener():
		if t != nil && ms == 0 {
			t.listed = time.Time{} // the release removed it from the queue
			t.wake()
			q.listenSoon(t, listenAfter)
		}
	case t != nil && t.at(place) != nil && len(t.watchers) > 0:
		t.stop()
		if ms == 0 {
			t.wake()
			return
		}
		kept := min(max(time.Duration(ms)*time.Millisecond, q.least), q.most)
		q.remind(t, kept+mathrand.N(kept/4))
	case ms == 0:
		q.passOn(key, place) // its waiter left: the next waiter must not lose time
	}
}

// unused returns the place, or "" if a waiter uses it.
func (q *waitQueue) unused(key, place string) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t := q.topics[key]; t != nil && t.at(place) != nil {
		return ""
	}
	return place
}

// refuses reports whether err says that the server does not allow pub/sub at all. It then gives pub/sub
// up: every waiter polls from now on. Any other error may be temporary.
func (q *waitQueue) refuses(err error) bool {
	n := q.node
	var reply ServerError
	if !errors.As(err, &reply) || isCode(err, "NOAUTH") || isCode(err, "WRONGPASS") {
		return false
	}
	refused := n.verdict("", reply)
	if refused == nil || refused.RetryAfter > 0 {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.refuse(refused, "pub/sub is not allowed: waiters poll")
	return true
}

// refuse lets nobody watch from now on, because the server does not allow something. The caller holds
// q.mu.
func (q *waitQueue) refuse(why error, detail string) {
	if q.over() == nil {
		q.refusal = why
		q.endAll()
		go q.node.notify(driver.NoticeDegraded, why, detail)
	}
}

func (n *Node) notify(kind string, err error, detail string) {
	n.cfg.Notify(driver.Notice{Kind: kind, Node: n.cfg.Addr, Err: err, Detail: detail})
}
