package redisnode

import (
	"context"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Processes that wait for one lock stand in a line beside it: a sorted set of places,
// by the time since when each waits. A place is taken by an attempt that is refused while
// somebody watches the key here. A release takes the first place out of the line, keeps the lock for it
// for a moment, so that no newcomer comes between, and tells its process, and nobody else,
// on a channel of its own. So a handoff costs the same however many wait.
//
// Nothing depends on the line but the order. Whoever is told nothing asks again after a
// while, as without it; a place whose process has gone is passed over, and one whose
// process does not come costs the moment that the lock is kept.

const (
	// next begins the value of a lock that is kept for a place in line.
	next = layout + "next|"
	// lineLife is how long a line stays when nobody in it asks again: some mostUnasked.
	lineLife = "150000" // ms
	// The lock is kept for a place for some round trips, in these bounds.
	leastKept, mostKept = 30 * time.Millisecond, 500 * time.Millisecond
	keptTrips           = 8
	// Who has handed the lock over, and wants it again, comes behind the next one anyway,
	// and so keeps off the server and the processor for about as long as that one needs.
	stepBack = 200 * time.Microsecond
)

// waitQueue returns what an acquire says about the line: its place, if somebody watches
// the key.
func (h *waiters) waitQueue(a *attempt, q *driver.Quorum) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.topics) == 0 {
		return nil
	}
	t := h.topics[h.node.names.channel(a.key)]
	if t == nil || len(t.watchers) == 0 || !t.server.proven() {
		return nil
	}
	if t.place == "" {
		h.places++
		kept := min(max(keptTrips*h.trip, leastKept), mostKept)
		t.place = t.server.id + "." + strconv.FormatUint(h.places, 10) + "." + strconv.FormatInt(kept.Milliseconds(), 10)
	}
	a.place = t.place
	since := t.since
	if q != nil && q.WaitingSince > 0 {
		since = int64(q.WaitingSince) // of all nodes the same
	}
	return []string{t.place, h.node.names.waitQueue(a.key), lineLife, strconv.FormatInt(since, 10)}
}

// handedOver notes that a release here handed the lock to who is next in line.
func (h *waiters) handedOver(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[h.node.names.channel(key)]; t != nil {
		t.handedOver = time.Now()
	}
}

// stepBack lets the one to whom the lock was handed go first, if an attempt will take a new
// place behind it.
func (h *waiters) stepBack(ctx context.Context, key string) {
	if rest := h.stepBackFor(key); rest > 0 {
		_ = await(within(ctx, rest), h.node.ending)
	}
}

// stepBackFor is for how long to step back.
func (h *waiters) stepBackFor(key string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.topics) > 0 {
		if t := h.topics[h.node.names.channel(key)]; t != nil && t.place == "" {
			return stepBack - time.Since(t.handedOver)
		}
	}
	return 0
}

// waits notes that an attempt was refused, and so has a place, and how long it took.
func (h *waiters) waits(a *attempt, now time.Time, trip time.Duration) {
	if a.place == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trip = trip
	t := h.topics[h.node.names.channel(a.key)]
	if t == nil || t.place != a.place || t.since != 0 {
		return
	}
	t.since = now.UnixMicro()
}

// served ends the place of an attempt that was granted. Others who watch here, if there
// are any, ask for one of their own.
func (h *waiters) served(a *attempt) {
	if a.place == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[h.node.names.channel(a.key)]
	if t == nil || t.place != a.place {
		return
	}
	t.dropPlace()
	if len(t.watchers) > 1 {
		t.wake()
	}
}

// dropPlace ends the topic's place. h.mu is held.
func (t *topic) dropPlace() {
	t.place, t.since = "", 0
	t.stopStandby()
}

// stopStandby ends the standby. h.mu is held.
func (t *topic) stopStandby() {
	if t.standby != nil {
		t.standby.Stop()
		t.standby = nil
	}
}

// told reads what this process was told: delay (ms), place, lock. h.mu is held.
func (h *waiters) told(payload string) {
	delay, rest, _ := strings.Cut(payload, " ")
	place, lock, ok := strings.Cut(rest, " ")
	ms, err := strconv.Atoi(delay)
	if !ok || err != nil {
		return // not ours
	}
	key := strings.TrimPrefix(lock, h.node.cfg.Prefix)
	t := h.topics[h.node.names.channel(key)]
	if t == nil || t.place != place || len(t.watchers) == 0 {
		if ms == 0 {
			h.passOn(key, place) // its waiter left: the next one is not to lose time
		}
		return
	}
	t.stopStandby()
	if ms == 0 {
		t.wake()
		return
	}
	kept := time.Duration(ms) * time.Millisecond
	t.standby = time.AfterFunc(kept+mathrand.N(kept/4+1), func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if t.place == place {
			t.wake()
		}
	})
}

// leaveQueue leaves the line, where nobody waits any more. h.mu is held.
func (h *waiters) leaveQueue(t *topic) {
	if t.place != "" {
		h.passOn(t.key, t.place)
		t.dropPlace()
	}
}

// passOn gives a place up, in the background, and passes the lock on if it is kept for
// it. h.mu is held.
func (h *waiters) passOn(key, place string) {
	n := h.node
	n.work.add()
	go func() {
		defer n.work.done()
		_, _ = n.releasePlace(context.Background(), key, "", place, releaseTries) // else it ends by itself
	}()
}

// unused returns the place, unless somebody waits with it.
func (h *waiters) unused(key, place string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[h.node.names.channel(key)]; t != nil && t.place == place {
		return ""
	}
	return place
}
