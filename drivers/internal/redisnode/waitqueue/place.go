package waitqueue

import (
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Processes that wait for one lock have places in its queue on the server: a sorted set,
// ordered by the time since when each waits. An attempt that is refused while a waiter of this
// process watches the key takes a place. A release removes the first place from the queue,
// reserves the lock for it for a moment, so that no newcomer gets it, and tells only this
// place's process, on its own channel. So a handoff costs the same however many wait.
//
// Only the order depends on the queue. A waiter that gets no message asks again after a while,
// as without the queue. A place whose process has gone is skipped, and one whose process does
// not ask costs the moment for which the lock is reserved.

const (
	// The lock is reserved for a place for some round trips, within these bounds.
	leastKept, mostKept = 30 * time.Millisecond, 500 * time.Millisecond
	keptTrips           = 8
	// A releaser that wants the lock again comes after the next waiter anyway. So it uses
	// neither the server nor the processor for about as long as that waiter needs.
	stepBack = 200 * time.Microsecond
)

// Place returns this process's place for key, and since when it waits, by the server's clock in
// microseconds (0: unknown yet). It returns "" if no waiter watches the key.
func (h *Queue) Place(key string) (place string, since int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topic(key)
	if t == nil || len(t.watchers) == 0 || !t.server.Proven() {
		return "", 0
	}
	if t.place == "" {
		h.places++
		kept := min(max(keptTrips*h.trip, leastKept), mostKept)
		t.place = t.server.ID + "." + strconv.FormatUint(h.places, 10) + "." + strconv.FormatInt(kept.Milliseconds(), 10)
	}
	return t.place, t.since
}

// HandedOver notes that a release of this process handed the lock to the next waiter.
func (h *Queue) HandedOver(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topic(key); t != nil {
		t.handedOver = time.Now()
	}
}

// StepBack returns how long an attempt must wait so that the waiter to which the lock was
// handed goes first. The attempt will take a new place after it.
func (h *Queue) StepBack(key string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topic(key); t != nil && t.place == "" {
		return stepBack - time.Since(t.handedOver)
	}
	return 0
}

// Watched reports whether a waiter of this process watches the key.
func (h *Queue) Watched(key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topic(key)
	return t != nil && len(t.watchers) > 0
}

// Refused notes that the server refused an attempt, which has its place since now, by the
// server's clock. The call took trip. Without a place Refused does nothing.
func (h *Queue) Refused(key, place string, now time.Time, trip time.Duration) {
	if place == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trip = trip
	t := h.topic(key)
	if t == nil || t.place != place || t.since != 0 {
		return
	}
	t.since = now.UnixMicro()
}

// Served ends the place of an attempt that was granted, if it had one. The other waiters of
// this process, if any, then ask for their own place.
func (h *Queue) Served(key, place string) {
	if place == "" {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topic(key)
	if t == nil || t.place != place {
		return
	}
	t.dropPlace()
	if len(t.watchers) > 1 {
		t.wake()
	}
}

// dropPlace ends the topic's place. The caller holds h.mu.
func (t *topic) dropPlace() {
	t.place, t.since = "", 0
	t.stopStandby()
}

// stopStandby ends the standby. The caller holds h.mu.
func (t *topic) stopStandby() {
	if t.standby != nil {
		t.standby.Stop()
		t.standby = nil
	}
}

// told handles a message to this process: delay (ms), place, lock. The caller holds h.mu.
func (h *Queue) told(payload string) {
	delay, rest, _ := strings.Cut(payload, " ")
	place, lock, ok := strings.Cut(rest, " ")
	ms, err := strconv.Atoi(delay)
	if !ok || err != nil {
		return // not a message of ours
	}
	key := h.host.Key(lock)
	t := h.topic(key)
	if t == nil || t.place != place || len(t.watchers) == 0 {
		if ms == 0 {
			h.host.PassOn(key, place) // its waiter left: the next waiter must not lose time
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

// leaveQueue leaves the queue when no waiter is left. The caller holds h.mu.
func (h *Queue) leaveQueue(t *topic) {
	if t.place != "" {
		h.host.PassOn(t.key, t.place)
		t.dropPlace()
	}
}

// Unused returns the place, or "" if a waiter uses it.
func (h *Queue) Unused(key, place string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topic(key); t != nil && t.place == place {
		return ""
	}
	return place
}
