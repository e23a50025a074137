package redisnode

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

const (
	// lingerTopic is how long a subscription stays when nobody waits any more: the
	// next waiter of a busy lock, a moment later, finds it there.
	lingerTopic = time.Second
	// Between attempts to subscribe again after a break.
	minBackoff, maxBackoff = 20 * time.Millisecond, 2 * time.Second
	// quiet is how often the subscription's connection is asked whether it still lives: one
	// that does not answer within as long again is broken.
	quiet = 2 * time.Second
	// A waiter that has not asked for the lock by then, and so has no place in line, is
	// entered as a listener, and again from time to time.
	listenAfter, listenAgain = 20 * time.Millisecond, time.Minute
	// A lock whose release will be announced is asked for when its TTL ends, and after this
	// time at the latest; one whose holder announces nothing after pauses in these bounds.
	mostUnasked            = time.Minute
	mostUnaskedCluster     = time.Second // its nodes pass messages on without a guarantee
	minForeign, maxForeign = 10 * time.Millisecond, 200 * time.Millisecond
)

var errSilent = errors.New("the connection of the subscription does not answer")

// Watch tells when key may have become free. All waiters of a backend share one
// connection, and all waiters of a key one subscription on it. Where the server has not
// confirmed that within the call timeout, the waiter gets a value as soon as it has.
func (n *Node) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if n.closed.Load() {
		return nil, driver.ErrClosed
	}
	wait, cancel := context.WithTimeout(ctx, n.cfg.CallTimeout)
	defer cancel()
	wake, err := n.hub.watch(ctx, wait, key)
	if err != nil {
		return nil, n.explain(key, err)
	}
	return wake, nil
}

// A hub is the one subscriber of a node, and knows its places in the lines of those
// who wait.
type hub struct {
	node *Node
	id   string // of this process' own channel: random
	own  string // the channel

	mu       sync.Mutex
	places   uint64 // how many there were
	trip     time.Duration
	topics   map[string]*topic
	sub      Subscription
	link     *link // of sub, and before it
	called   bool  // the server confirmed the subscription to own there
	opening  bool
	probe    *time.Timer // while there is a connection
	unlisted bool        // the server refuses to keep the lines of those who wait
	refused  error       // the server's refusal: pub/sub is not allowed here
	closed   bool
	sweep    *time.Timer
}

// A topic is one channel.
type topic struct {
	key      string
	watchers map[chan struct{}]struct{}
	ready    chan struct{} // closed once the server confirmed the subscription
	early    bool          // a Watch returned before that
	idle     time.Time     // since when nobody watches
	place    string        // in the line, from the attempt that takes it to a grant; empty: none
	since    int64         // when it came there, by the server's clock in µs; 0: not known yet
	gave     time.Time     // when this process handed the lock over
	standby  *time.Timer   // until it is to try though it is second
	listen   *time.Timer   // until it is entered as a listener
	listed   time.Time     // when it was
	polls    int           // attempts in a row that found a holder that announces nothing
}

func newHub(n *Node) *hub {
	id := rand.Text()[:16]
	return &hub{node: n, id: id, own: n.names.own() + id, topics: map[string]*topic{}}
}

// watch subscribes to key's channel on behalf of a waiter that leaves with ctx, and
// returns when the server has confirmed it, bounded by wait.
func (h *hub) watch(ctx, wait context.Context, key string) (<-chan struct{}, error) {
	wake, channel := make(chan struct{}, 1), h.node.names.channel(key)
	t, fresh, err := h.join(key, channel, wake)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { h.leave(channel, t, wake) })
	if fresh {
		h.subscribe(wait, channel)
	}
	h.mu.Lock()
	ready := t.ready
	h.mu.Unlock()
	early := false
	select {
	case <-ready:
	case <-wait.Done():
		if err := ctx.Err(); err != nil {
			h.leave(channel, t, wake)
			return nil, fmt.Errorf("no subscription: %w", err)
		}
		early = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refused != nil {
		return nil, h.refused
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
func (h *hub) listenSoon(t *topic, after time.Duration) {
	if t.place == "" && t.listen == nil && len(t.watchers) > 0 && !h.unlisted {
		h.node.work.add()
		t.listen = time.AfterFunc(after, func() {
			defer h.node.work.done()
			h.enlist(t)
		})
	}
}

// unlisten takes back listenSoon. h.mu is held.
func (h *hub) unlisten(t *topic) {
	if t.listen != nil && t.listen.Stop() {
		h.node.work.done()
	}
	t.listen = nil
}

// enlist has the next release of a topic's lock announced, though nobody may stand in line,
// and then gives its waiters a value, for a release in between.
func (h *hub) enlist(t *topic) {
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
func (h *hub) delist(t *topic) {
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
func (h *hub) listener(t *topic, life string) (code int64, err error) {
	n := h.node
	args := []string{"0", n.names.waitQueue(t.key), "listen." + h.id, life}
	a, err := n.try(context.Background(), opListen, []string{n.names.lock(t.key)}, func(*process) []string { return args })
	if err == nil {
		code, _ = number(a.reply, 0)
	}
	return code, err
}

// pollAfter returns when a waiter asks again that the watch gives no value: see
// driver.HeldError. asked is the attempt that was refused.
func (h *hub) pollAfter(asked *attempt, e *driver.HeldError) time.Duration {
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
	if asked.place == "" || h.unlisted || !h.called || time.Since(h.link.heard) > 2*quiet {
		return 0
	}
	most := mostUnasked
	if h.node.cfg.Cluster {
		most = mostUnaskedCluster
	}
	if e.RetryAfter > 0 {
		most = min(e.RetryAfter, most)
	}
	return most + mathrand.N(most/20+time.Millisecond)
}

// join adds a waiter to the topic, and reports whether it has to be subscribed.
func (h *hub) join(key, channel string, wake chan struct{}) (t *topic, fresh bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, false, driver.ErrClosed
	}
	if h.refused != nil {
		return nil, false, h.refused
	}
	t = h.topics[channel]
	if t == nil {
		t = &topic{key: key, watchers: map[chan struct{}]struct{}{}, ready: make(chan struct{})}
		h.topics[channel] = t
		fresh = true
	}
	t.watchers[wake] = struct{}{}
	return t, fresh, nil
}

func (h *hub) leave(channel string, t *topic, wake chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(t.watchers, wake)
	if len(t.watchers) > 0 || h.closed {
		return
	}
	h.quit(t)
	h.unlisten(t)
	h.delist(t)
	t.idle = time.Now()
	if h.sweep == nil {
		h.sweep = time.AfterFunc(lingerTopic, h.clean)
	}
}

// clean ends the subscriptions for which nobody waits.
func (h *hub) clean() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.sweep = nil
	var gone []string
	idle := false
	for channel, t := range h.topics {
		switch {
		case len(t.watchers) > 0:
		case time.Since(t.idle) >= lingerTopic:
			gone = append(gone, channel)
			delete(h.topics, channel)
		default:
			idle = true
		}
	}
	if idle {
		h.sweep = time.AfterFunc(lingerTopic/2, h.clean)
	}
	if len(gone) == 0 || h.sub == nil {
		return
	}
	if len(h.topics) == 0 { // and the connection with the last of them
		h.drop()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.node.cfg.CallTimeout)
	defer cancel()
	// A failure shows on the connection, which then breaks.
	_ = h.sub.Remove(ctx, gone...)
}

// subscribe sends the subscription of one channel, on a new connection if there is
// none; a connection that is being opened takes the channel along.
func (h *hub) subscribe(ctx context.Context, channel string) {
	h.mu.Lock()
	sub := h.sub
	if sub == nil {
		h.open(0)
		h.mu.Unlock()
		return
	}
	h.mu.Unlock()
	// A failure shows on the connection, which then breaks.
	_ = sub.Add(ctx, channel)
}

// open begins to open a connection after a pause, in the background. h.mu is held.
func (h *hub) open(pause time.Duration) {
	if h.opening || h.closed {
		return
	}
	h.opening = true
	h.node.wg.add()
	go func() {
		defer h.node.wg.done()
		h.reopen(pause)
	}()
}

// reopen opens a connection and subscribes to all topics, and tries until it
// succeeds, is refused, or nobody waits.
func (h *hub) reopen(pause time.Duration) {
	for {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-h.node.ending:
			timer.Stop()
		}
		if h.once() {
			return
		}
		pause = min(max(2*pause, minBackoff), maxBackoff)
	}
}

// once tries to open the connection, and reports whether that is settled.
func (h *hub) once() bool {
	channels := h.wanted()
	if channels == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.node.cfg.CallTimeout)
	defer cancel()
	l := &link{hub: h}
	h.mu.Lock()
	h.link, h.called = l, false
	l.heard = time.Now()
	h.mu.Unlock()
	sub, err := h.node.cfg.Client.Subscribe(ctx, Sink{Subscribed: l.subscribed, Message: l.message, Broken: l.broken}, channels)

	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil && l.dead { // what it told in between is lost
		sub.Close()
		err = l.cause
		for _, t := range h.topics {
			t.wake()
		}
	}
	if err != nil {
		h.link, h.called = nil, false
		return h.refusal(err)
	}
	h.opening = false
	if h.closed {
		sub.Close()
		return true
	}
	l.sub, h.sub = sub, sub
	h.probe = time.AfterFunc(quiet, h.prove)
	there := map[string]bool{}
	for _, channel := range channels {
		there[channel] = true
	}
	var more []string // those that came meanwhile
	for channel := range h.topics {
		if !there[channel] {
			more = append(more, channel)
		}
	}
	if len(more) > 0 {
		_ = sub.Add(ctx, more...) // a failure breaks the connection
	}
	return true
}

// prove asks the connection whether it still lives, by subscribing once more to this
// process' own channel, which needs no right beside; and ends one that does not answer.
func (h *hub) prove() {
	h.mu.Lock()
	sub, l := h.sub, h.link
	if h.closed || sub == nil {
		h.mu.Unlock()
		return
	}
	silent := time.Since(l.heard)
	for _, t := range h.topics {
		if len(t.watchers) > 0 && t.place == "" && time.Since(t.listed) > listenAgain {
			h.listenSoon(t, 0)
		}
	}
	if silent < 3*quiet/2 {
		h.probe.Reset(quiet)
	}
	h.mu.Unlock()
	if silent >= 3*quiet/2 {
		l.broken(errSilent)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.node.cfg.CallTimeout)
	defer cancel()
	_ = sub.Add(ctx, h.own) // a failure breaks the connection
}

// wanted returns the channels to subscribe to; nil, and no connection is being
// opened any more, where there are none.
func (h *hub) wanted() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || len(h.topics) == 0 {
		h.opening = false
		return nil
	}
	return slices.AppendSeq([]string{h.own}, maps.Keys(h.topics)) // called before anybody wakes
}

// refusal gives pub/sub up, if the server does not allow it: every waiter polls from
// now on. It reports whether err is that; any other error may pass. h.mu is held.
func (h *hub) refusal(err error) bool {
	var reply ServerError
	if !errors.As(err, &reply) || isCode(err, "NOAUTH") || isCode(err, "WRONGPASS") {
		return false
	}
	err = h.node.refusal("", reply)
	var refused *driver.RefusedError
	if !errors.As(err, &refused) || refused.RetryAfter > 0 {
		return false
	}
	h.refused, h.opening = err, false
	h.drop()
	for _, t := range h.topics {
		t.confirm()
		t.wake()
	}
	clear(h.topics)
	go h.node.cfg.Event(driver.Notice{Kind: driver.NoticeDegraded, Node: h.node.cfg.Addr, Err: err, Detail: "pub/sub is not allowed: waiters poll"})
	return true
}

// confirm says that the subscription stands, and reports whether it did before. h.mu is
// held.
func (t *topic) confirm() (again bool) {
	select {
	case <-t.ready:
		return true
	default:
		close(t.ready)
		return false
	}
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

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.sweep != nil {
		h.sweep.Stop()
	}
	h.drop()
	for _, t := range h.topics {
		h.quit(t)
		h.unlisten(t)
		h.delist(t)
		t.confirm()
		t.wake()
	}
	clear(h.topics)
}

// drop ends the connection, if there is one. h.mu is held.
func (h *hub) drop() {
	if h.sub != nil {
		h.sub.Close()
		h.probe.Stop()
		h.sub, h.link, h.called = nil, nil, false
	}
}

// A link takes what one connection says to the hub. Its fields are the hub's to lock.
type link struct {
	hub   *hub
	sub   Subscription
	heard time.Time // when the server last said something
	dead  bool
	cause error
}

// subscribed: what was published between a break and now is lost, so it wakes too; and what
// was between a Watch that did not wait for this and now.
func (l *link) subscribed(channel string) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.heard = time.Now()
	if channel == l.hub.own {
		l.hub.called = l.hub.link == l
		return
	}
	if t := l.hub.topics[channel]; t != nil {
		if again := t.confirm(); again || t.early {
			t.wake()
			t.listed = time.Time{} // the server may have been started anew
			l.hub.listenSoon(t, listenAfter)
		}
	}
}

// message: on a key's channel a release wakes all; on the process' own one it is
// somebody's turn.
func (l *link) message(channel, payload string) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	l.heard = time.Now()
	if channel == h.own {
		h.turn(payload)
	} else if t := h.topics[channel]; t != nil {
		t.listed = time.Time{} // the release took it out
		t.wake()
		h.listenSoon(t, listenAfter)
	}
}

// broken: everybody wakes, and a new connection is opened if somebody waits.
func (l *link) broken(err error) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	l.dead, l.cause = true, err
	if h.closed || h.sub == nil || h.sub != l.sub {
		return
	}
	h.drop()
	if h.refusal(err) {
		return
	}
	go h.node.cfg.Event(driver.Notice{Kind: driver.NoticeDisconnected, Node: h.node.cfg.Addr, Err: err, Detail: "the subscription broke: waiters poll until it stands again"})
	for _, t := range h.topics {
		t.wake()
	}
	if len(h.topics) > 0 {
		h.open(minBackoff)
	}
}
