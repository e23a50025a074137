package redisnode

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

const (
	// lingerTopic is how long a subscription stays when nobody waits any more: the
	// next waiter of a busy lock, a moment later, finds it there.
	lingerTopic = time.Second
	// A waiter that has not asked for the lock by then, and so has no place in line, is
	// entered as a listener, and again from time to time.
	listenAfter, listenAgain = 20 * time.Millisecond, time.Minute
	// A lock whose release will be announced is asked for when its TTL ends, and after this
	// time at the latest; one whose holder announces nothing after pauses in these bounds.
	mostUnasked            = time.Minute
	mostLate               = 10 * time.Millisecond // after that end, so that not all ask at once
	minForeign, maxForeign = 10 * time.Millisecond, 200 * time.Millisecond
)

// Watch tells when key may have become free. All waiters of a backend share one
// connection, and all waiters of a key one subscription on it. Where the server has not
// confirmed that within the call timeout, the waiter gets a value as soon as it has.
func (n *Node) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if n.closed.Load() {
		return nil, driver.ErrClosed
	}
	wait, cancel := context.WithTimeout(ctx, n.cfg.CallTimeout)
	defer cancel()
	wake, err := n.waiters.watch(ctx, wait, key)
	if err != nil {
		return nil, n.explain(key, err)
	}
	return wake, nil
}

// waiters know for which keys somebody waits here, and the places of these in the lines of
// those who wait. It hears of releases through one subscriber; in a Cluster through one for
// each server, on which the keys are that it serves: nodes of a Cluster pass a message on
// to each other, and lose it where their link breaks at that moment.
type waiters struct {
	node *Node
	id   string // of this process as a listener: random

	mu          sync.Mutex
	places      uint64 // how many there were
	trip        time.Duration
	topics      map[string]*topic
	subscribers map[*process]*subscriber // of nil: of what is no Cluster
	unlisted    bool                     // the server refuses to keep the lines of those who wait
	refusal     error                    // the server's: pub/sub is not allowed here
	closed      bool
	sweep       *time.Timer
}

var _ listener = (*waiters)(nil)

// A topic is one channel.
type topic struct {
	key        string
	channel    string
	server     *subscriber // which hears of it
	watchers   map[chan struct{}]struct{}
	ready      chan struct{} // closed once the server confirmed the subscription
	early      bool          // a Watch returned before that
	idle       time.Time     // since when nobody watches
	place      string        // in the line, from the attempt that takes it to a grant; empty: none
	since      int64         // when it came there, by the server's clock in µs; 0: not known yet
	handedOver time.Time     // when this process handed the lock over
	standby    *time.Timer   // until it is to try though it is second
	listen     *time.Timer   // until it is entered as a listener
	listed     time.Time     // when it was
	polls      int           // attempts in a row that found a holder that announces nothing
}

func newWaiters(n *Node) *waiters {
	return &waiters{node: n, id: rand.Text()[:16], topics: map[string]*topic{}, subscribers: map[*process]*subscriber{}}
}

// watch subscribes to key's channel on behalf of a waiter that leaves with ctx, and
// returns when the server has confirmed it, bounded by wait.
func (h *waiters) watch(ctx, wait context.Context, key string) (<-chan struct{}, error) {
	wake, channel := make(chan struct{}, 1), h.node.names.channel(key)
	serves, err := h.serves(wait, key)
	if err != nil {
		return nil, err
	}
	t, ready, err := h.join(key, channel, serves, wake)
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

// listenSoon enters the topic as a listener after a while, unless it has a place in line by
// then. h.mu is held.
func (h *waiters) listenSoon(t *topic, after time.Duration) {
	if t.place == "" && t.listen == nil && len(t.watchers) > 0 && !h.unlisted {
		h.node.work.add()
		t.listen = time.AfterFunc(after, func() {
			defer h.node.work.done()
			h.enlist(t)
		})
	}
}

// unlisten takes back listenSoon. h.mu is held.
func (h *waiters) unlisten(t *topic) {
	if t.listen != nil && t.listen.Stop() {
		h.node.work.done()
	}
	t.listen = nil
}

// enlist has the next release of a topic's lock announced, though nobody may stand in line,
// and then gives its waiters a value, for a release in between.
func (h *waiters) enlist(t *topic) {
	h.mu.Lock()
	t.listen = nil
	idle := h.closed || t.place != "" || len(t.watchers) == 0
	h.mu.Unlock()
	if idle {
		return
	}
	code, err := h.listener(t, lineLife)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.listenSoon(t, time.Second)
		return
	}
	h.unlisted = code == 0
	t.listed = time.Now()
	t.wake()
	if len(t.watchers) == 0 {
		h.delist(t)
	}
}

// delist takes the topic's listener out, in the background. h.mu is held.
func (h *waiters) delist(t *topic) {
	if t.listed.IsZero() || h.unlisted {
		return
	}
	t.listed = time.Time{}
	h.node.work.add()
	go func() {
		defer h.node.work.done()
		_, _ = h.listener(t, "0") // else it ends with the line
	}()
}

// listener enters the topic as a listener for so many ms, or takes it out.
func (h *waiters) listener(t *topic, life string) (code int64, err error) {
	n := h.node
	a, err := n.try(context.Background(), opListen, []string{n.names.lock(t.key)}, "0", n.names.waitQueue(t.key), "listen."+h.id, life)
	if err == nil {
		code, _ = number(a.Reply, 0)
	}
	return code, err
}

// pollAfter returns when a waiter asks again that the watch gives no value: see
// driver.HeldError. asked is the attempt that was refused, by the server p.
func (h *waiters) pollAfter(asked *attempt, p *process, e *driver.HeldError) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[h.node.names.channel(asked.key)]
	if t == nil || len(t.watchers) == 0 || e.ReservedForWaiter {
		return 0
	}
	if e.Since.IsZero() { // a foreign lock: ours have a token, which is a time
		t.polls++
		pause := min(minForeign<<min(t.polls, 5), maxForeign)
		return pause/2 + mathrand.N(pause/2)
	}
	t.polls = 0
	h.move(t, p)
	if asked.place == "" || asked.place != t.place || h.unlisted || !t.confirmed() || !t.server.proven() {
		return 0
	}
	if e.RetryAfter > 0 && e.RetryAfter < mostUnasked {
		return e.RetryAfter + mathrand.N(min(e.RetryAfter/20, mostLate)+time.Millisecond)
	}
	return mostUnasked + mathrand.N(mostUnasked/20)
}

// serves returns the server that is known to serve a key of a Cluster; else nil.
func (h *waiters) serves(ctx context.Context, key string) (*process, error) {
	if !h.node.cfg.Cluster {
		return nil, nil
	}
	p, _, err := h.node.router.process(ctx, h.node.names.lock(key))
	return p, err
}

// subscriber returns the subscriber to a server. h.mu is held.
func (h *waiters) subscriber(p *process) *subscriber {
	if !h.node.cfg.Cluster {
		p = nil
	}
	s := h.subscribers[p]
	if s == nil {
		n := h.node
		s = newSubscriber(n.names.own(), h, n.cfg.CallTimeout, &n.wg, func(ctx context.Context, sink Sink, channels []string) (Subscription, error) {
			return n.cfg.Client.Subscribe(ctx, sink, channels)
		})
		h.subscribers[p] = s
	}
	return s
}

// move has a topic heard of by the subscriber to the server that serves its key now, if that
// is another one. h.mu is held.
func (h *waiters) move(t *topic, p *process) {
	to := h.subscriber(p)
	if to == t.server {
		return
	}
	h.leaveQueue(t) // its place names the other one
	if t.confirmed() {
		t.ready = make(chan struct{})
	}
	t.early = true
	t.server.drop(t.channel)
	t.server = to
	to.want(t.channel)
}

// join adds a waiter to the topic, and returns what is closed once the server p has confirmed
// its subscription.
func (h *waiters) join(key, channel string, p *process, wake chan struct{}) (t *topic, ready <-chan struct{}, err error) {
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
		t = &topic{key: key, channel: channel, server: h.subscriber(p), watchers: map[chan struct{}]struct{}{}, ready: make(chan struct{})}
		h.topics[channel] = t
		t.server.want(channel)
	}
	t.watchers[wake] = struct{}{}
	return t, t.ready, nil
}

func (h *waiters) leave(t *topic, wake chan struct{}) {
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

// clean ends the subscriptions for which nobody waits.
func (h *waiters) clean() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.sweep = nil
	idle := false
	needed := map[*subscriber]bool{}
	for channel, t := range h.topics {
		switch {
		case len(t.watchers) > 0:
		case time.Since(t.idle) >= lingerTopic:
			t.server.drop(channel)
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
	for p, s := range h.subscribers {
		if !needed[s] {
			s.close()
			delete(h.subscribers, p)
		}
	}
}

// confirmed reports whether the subscription stands, or did before a break.
func (t *topic) confirmed() bool {
	select {
	case <-t.ready:
		return true
	default:
		return false
	}
}

// confirm says that the subscription stands, and reports whether it did before. h.mu is
// held.
func (t *topic) confirm() (again bool) {
	again = t.confirmed()
	if !again {
		close(t.ready)
	}
	return again
}

// wake gives every waiter a value. h.mu is held.
func (t *topic) wake() {
	for wake := range t.watchers {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

func (h *waiters) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.sweep != nil {
		h.sweep.Stop()
	}
	h.end()
}

// end ends all subscriptions; every waiter gets a value. h.mu is held.
func (h *waiters) end() {
	for _, s := range h.subscribers {
		s.close()
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

// confirmed: what was published between a break and now is lost, so it wakes too; and what
// was between a Watch that did not wait for this and now.
func (h *waiters) confirmed(s *subscriber, channel string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[channel]
	if t == nil || t.server != s {
		return
	}
	if again := t.confirm(); again || t.early {
		t.early = false
		t.wake()
		t.listed = time.Time{} // the server may have been started anew
		h.listenSoon(t, listenAfter)
	}
}

// message: on a key's channel a release wakes all; on a subscriber's own one it is somebody's
// turn.
func (h *waiters) message(s *subscriber, channel, payload string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if channel == s.own {
		h.told(payload)
	} else if t := h.topics[channel]; t != nil {
		t.listed = time.Time{} // the release took it out
		t.wake()
		h.listenSoon(t, listenAfter)
	}
}

// alive: listeners are entered again from time to time, and who waits for a key that another
// server serves now asks there.
func (h *waiters) alive(s *subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.topics {
		if t.server != s || len(t.watchers) == 0 {
			continue
		}
		if t.place == "" && time.Since(t.listed) > listenAgain {
			h.listenSoon(t, 0)
		}
		if h.node.cfg.Cluster {
			if p := h.node.router.known(h.node.names.lock(t.key)); p != nil && h.subscribers[p] != s {
				t.wake()
			}
		}
	}
}

// broken: everybody whom it concerns asks.
func (h *waiters) broken(s *subscriber, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	go h.node.cfg.Event(driver.Notice{Kind: driver.NoticeDisconnected, Node: h.node.cfg.Addr, Err: err, Detail: "the subscription broke: waiters poll until it stands again"})
	for _, t := range h.topics {
		if t.server == s {
			t.wake()
		}
	}
}

// refused gives pub/sub up, if the server does not allow it: every waiter polls from now on.
// Any error but that may pass.
func (h *waiters) refused(err error) bool {
	var reply ServerError
	if !errors.As(err, &reply) || isCode(err, "NOAUTH") || isCode(err, "WRONGPASS") {
		return false
	}
	err = h.node.refusal("", reply)
	var refused *driver.RefusedError
	if !errors.As(err, &refused) || refused.RetryAfter > 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refusal != nil || h.closed {
		return true
	}
	h.refusal = err
	h.end()
	go h.node.cfg.Event(driver.Notice{Kind: driver.NoticeDegraded, Node: h.node.cfg.Addr, Err: err, Detail: "pub/sub is not allowed: waiters poll"})
	return true
}
