package redlocktest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/redlock-go/redlock/driver"
)

// After this many calls a key is replaced and its record judged. The search for an order takes
// longer with more calls, and with more calls without an answer.
const (
	callsOfKey    = 80
	unknownsOfKey = 6
)

// stressKey is a key that is in use, and the record of its calls.
type stressKey struct {
	name    string
	readers int // of a thousand attempts, those that ask for the shared mode

	mu      sync.Mutex
	inside  int  // workers
	retired bool // no more workers may enter
	judged  bool
	unknown int
	ops     []porcupine.Operation
}

// newKey returns a fresh key. Every second one has readers, a share of the attempts that is drawn.
func (s *stress) newKey(rng *mathrand.Rand) *stressKey {
	k := &stressKey{name: "redlocktest/stress/" + rand.Text()}
	if s.keys.Add(1)%2 == 0 && s.info.Features.Has(driver.FeatureShared) {
		k.readers = 100 + rng.IntN(850)
	}
	return k
}

// add records a call.
func (k *stressKey) add(client int, in input, call, ret int64, out output) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if out.verdict == unknown || in.kind == undoOp {
		ret = -1
	}
	if out.verdict == unknown && in.kind != undoOp {
		k.unknown++
	}
	k.ops = append(k.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: ret})
}

// enter returns one of the keys in use, and first replaces it if it has had all its calls.
func (w *stressWorker) enter() *stressKey {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.rng.IntN(len(w.live))
	k := w.live[i]
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.ops) >= callsOfKey || k.unknown >= unknownsOfKey {
		k.retired = true
		w.live[i] = w.newKey(w.rng)
		if k.inside == 0 {
			k.inside++ // to judge it
			return k
		}
		fresh := w.live[i]
		fresh.inside++
		return fresh
	}
	k.inside++
	return k
}

// leave ends a worker's use of a key. The last one judges it.
func (w *stressWorker) leave(k *stressKey) {
	k.mu.Lock()
	last := k.retired && k.inside == 1
	if !last {
		k.inside--
	}
	k.mu.Unlock()
	if last {
		w.attempt(w.ctx, k, driver.Request{}) // all its locks are released
		w.judge(k)
	}
}

// stressWorker is a goroutine that uses a client.
type stressWorker struct {
	*stress
	rng    *mathrand.Rand
	client *stressClient
	vain   int // attempts without an answer, since the last that had one
}

// chance returns true with a probability of n in a thousand.
func (w *stressWorker) chance(n int) bool { return w.rng.IntN(1000) < n }

// upTo returns a random time of at most d.
func (w *stressWorker) upTo(d time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(max(d, 1))))
}

// turn tries to get a random key once, in a random way.
func (w *stressWorker) turn(k *stressKey) {
	defer w.leave(k)
	ctx, cancel := context.WithTimeout(w.ctx, max(w.callTime(), 4*time.Duration(w.o.Workers)*time.Duration(w.hold.Load())))
	defer cancel()
	var req driver.Request
	if w.chance(k.readers) {
		req.Mode = driver.Shared
	}
	watcher, watches := w.client.backend().(driver.Watcher)
	switch {
	case w.chance(50): // given up during the call, or just before or after
		short, end := context.WithTimeout(ctx, w.upTo(2*time.Duration(w.hold.Load())))
		defer end()
		req.Wait = w.chance(500)
		w.attempt(short, k, req)
	case w.chance(200):
		req.Wait = true
		w.attempt(ctx, k, req)
	case watches && w.chance(150):
		w.watch(ctx, watcher, k, req)
	default:
		if w.attempt(ctx, k, req) == held {
			if w.chance(100) {
				w.look(k)
			}
			w.pause(w.upTo(time.Duration(w.hold.Load())))
		}
	}
}

// callTime bounds a call, so that a fault costs no more than that.
func (s *stress) callTime() time.Duration { return time.Second }

// watch makes an attempt after each signal of a watch.
func (w *stressWorker) watch(ctx context.Context, b driver.Watcher, k *stressKey, req driver.Request) {
	w.ops.Add(1)
	signal, err := b.Watch(ctx, k.name)
	v := w.saw(err)
	if v != granted && v != unknown && v != later {
		w.fail(watching, "Watch gives %v: %v", v, err)
	}
	for range 4 {
		if w.attempt(ctx, k, req) != held {
			return
		}
		t := time.NewTimer(max(4*time.Duration(w.hold.Load()), 20*time.Millisecond)) // others may be before it
		select {
		case <-signal:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// fail records a failure, which ends the stress.
func (s *stress) fail(broken rule, format string, args ...any) {
	if s.found.CompareAndSwap(false, true) {
		_, file, line, _ := runtime.Caller(1)
		s.recordAt(fmt.Sprintf("redlocktest/%s:%d", filepath.Base(file), line), broken, format, args...)
	}
}

// attempt makes one attempt, and if it succeeds uses the lock.
func (w *stressWorker) attempt(ctx context.Context, k *stressKey, req driver.Request) verdict {
	b := w.client.backend()
	ttl := w.anyTTL()
	req.Key, req.Owner, req.TTL = k.name, ownerLabel+strings.ToLower(rand.Text()), ttl
	in := input{kind: acquireOp, who: int(w.who.Add(1)), owner: req.Owner, waits: req.Wait, shared: req.Mode == driver.Shared}
	w.ops.Add(1)
	call := w.now()
	l, err := b.Acquire(ctx, &req)
	ret := w.now()
	req = driver.Request{} // it is the caller's again
	v := w.saw(err)
	if v == held {
		w.refusal(in, err)
	}
	if v == held && gaveUp(ctx, in, err) {
		v = unknown
	}
	w.tune(v)
	if v == granted || v == held {
		w.vain = 0
	}
	switch v {
	case granted:
		if l == nil {
			w.fail(acquiring, "Acquire returned neither a lease nor an error")
			return unknown
		}
		g := l.Grant()
		w.grants.Add(1)
		if in.shared {
			w.shared.Add(1)
		}
		if len(g.Votes) > 0 {
			w.quorum.Store(true)
		}
		k.add(w.client.id, in, call, ret, output{verdict: granted, fence: g.Fence, expires: w.instant(g.Expires)})
		w.have(&stressLease{Lease: l, key: k, in: in, fence: g.Fence, ttl: ttl, backend: b, remote: w.client.remote, open: ret})
	case held:
		w.refusals.Add(1)
		out := output{verdict: held}
		var he *driver.HeldError
		if errors.As(err, &he) {
			out.holder, out.reserved, out.readers = he.Holder, he.ReservedForWaiter, he.Mode == driver.Shared
		}
		k.add(w.client.id, in, call, ret, out)
	case unknown, later:
		w.unknowns.Add(1)
		k.add(w.client.id, in, call, ret, output{verdict: unknown})
		in.kind = undoOp
		k.add(w.client.id, in, call, 0, output{verdict: unknown})
		// Where a server or a process takes long to start, calls that fail at once would be most of the record.
		w.pause(poll << min(w.vain, 8))
		w.vain++
	default:
		w.fail(fourOutcomes, "Acquire gives %v: %v", v, err)
	}
	return v
}

// refusal checks what a refusal says of the holder.
func (w *stressWorker) refusal(in input, err error) {
	var he *driver.HeldError
	switch {
	case !errors.As(err, &he):
		w.fail(fourOutcomes, "an error is ErrHeld, and errors.As finds no *HeldError in it: %T %v", err, err)
	case he.Holder != "" && he.Holder == in.owner:
		w.fail(holderSeen, "an attempt is refused with the attempt itself as the holder: %v", err)
	case in.waits && w.info.Features.Has(driver.FeatureQueueing) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled):
		w.fail(waiting, "a request that waits gives ErrHeld without the error of its context: %v", err)
	}
}

// anyTTL returns a TTL that may end during the stress, or one about ten times as long.
func (w *stressWorker) anyTTL() time.Duration {
	ttl := w.short()
	if ttl == 0 {
		return 0
	}
	ttl += w.upTo(ttl / 2)
	if w.chance(300) {
		ttl += 10 * w.short()
	}
	return min(ttl, w.info.MaxTTL)
}

// instant is a time of the record; zero stays zero.
func (s *stress) instant(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return max(1, int64(t.Sub(s.start)))
}

// tune makes holds longer or shorter, so that some attempts are refused and some granted.
func (s *stress) tune(v verdict) {
	n := s.attempts.Add(1)
	if n%200 != 0 {
		return
	}
	hold, share := s.hold.Load(), float64(s.refusals.Load())/float64(n)
	switch {
	case share < 0.2:
		hold = min(hold*2, int64(s.longestHold()))
	case share > 0.6:
		hold = max(hold/2, int64(20*time.Microsecond))
	}
	s.hold.Store(hold)
}

// stressLease is a lease with the data that the record needs.
type stressLease struct {
	driver.Lease
	key     *stressKey
	in      input
	fence   uint64
	ttl     time.Duration
	backend driver.Backend
	remote  bool
	open    int64 // when it was last seen not to be lost
	gone    bool
}

// look notes whether the client knows that the lease is lost. A process knows it a moment earlier
// than its parent.
func (l *stressLease) look(now int64) {
	if l.gone {
		return
	}
	if l.gone = over(l.Grant().Lost); !l.gone && !l.remote {
		l.open = now
	}
}

// heard notes what the end of a call says of the lease of a process: before an answer the process
// tells a loss that it knew of when it was called. A process that is gone tells nothing: the lease
// of a session may have been lost at any time since the last answer.
func (w *stressWorker) heard(l *stressLease, call int64, err error) {
	if !l.remote {
		return
	}
	if l.look(call); l.gone {
		return
	}
	unheard := errors.Is(err, errProcessGone)
	if !unheard {
		l.open = call
	}
	l.gone = w.session() && (unheard || classify(err) == lost) // lost during the call
}

func (s *stress) session() bool { return s.info.Features.Has(driver.FeatureSession) }

// have holds a lock for a while, during which the holder may renew it several times and other
// clients look at it or break it.
func (w *stressWorker) have(l *stressLease) {
	hold := time.Duration(w.hold.Load())
	l.look(w.now())
	w.pause(w.upTo(hold))
	for v := granted; v != lost && w.chance(300); {
		v = w.renew(l)
	}
	if w.chance(50) {
		w.look(l.key)
	}
	if w.chance(20) && !(l.in.shared && w.quorum.Load()) { // readers on a quorum may have one token
		w.breakLock(l)
	}
	// A process tells a loss of its session at the next call, which would not come.
	if l.ttl > 0 && l.ttl < 2*w.short() && w.chance(40) && !(l.remote && w.session()) {
		defer w.slow.Add(-1)
		if w.slow.Add(1) <= int64(1+w.o.Workers/4) {
			w.outlive(l)
			return
		}
	}
	w.pause(w.upTo(hold))
	w.release(l)
}

func (w *stressWorker) renew(l *stressLease) (v verdict) {
	if w.chance(500) {
		l.ttl = w.anyTTL()
	}
	renewal := driver.Renewal{TTL: l.ttl}
	if w.info.Features.Has(driver.FeatureKeep) && w.chance(100) {
		renewal.Keep = w.upTo(time.Duration(w.hold.Load()))
	}
	ctx, cancel := context.WithTimeout(w.ctx, w.callTime())
	defer cancel()
	in := l.in
	in.kind = renewOp
	w.ops.Add(1)
	call := w.now()
	l.look(call)
	gone := l.gone
	g, err := l.Renew(ctx, &renewal)
	ret := w.now()
	w.heard(l, call, err)
	v = w.saw(err)
	now := l.Grant()
	switch {
	case v == granted && gone:
		w.fail(losing, "Lost was closed %v after the start, and a Renew that was called later succeeds: the lease was not lost", time.Duration(l.open))
	case v == granted && (now.Fence != l.fence || now.Expires.Before(g.Expires)):
		w.fail(renewing, "Renew gave token %d until %v, and Grant after it token %d until %v", l.fence, g.Expires, now.Fence, now.Expires)
	case v == lost && w.session() && (now.Expires.IsZero() || time.Now().Before(now.Expires)) && now.Lost != nil && !over(now.Lost):
		w.fail(losing, "Renew says that the lease is lost with its session, and Lost is not closed")
	}
	switch v {
	case granted:
		l.key.add(w.client.id, in, call, ret, output{verdict: granted, expires: w.instant(g.Expires)})
	case lost:
		w.losses.Add(1)
		l.key.add(w.client.id, in, call, ret, output{verdict: lost})
	case unknown, later: // it may have shortened the lease
		w.unknowns.Add(1)
		out := output{verdict: unknown}
		if l.ttl > 0 {
			out.expires = call + int64(l.ttl-driver.Drift(l.ttl))
		}
		l.key.add(w.client.id, in, call, ret, out)
	default:
		w.fail(fourOutcomes, "Renew gives %v: %v", v, err)
	}
	return v
}

// release calls Release until its outcome is known, or the client has ended.
func (w *stressWorker) release(l *stressLease) {
	in := l.in
	in.kind = releaseOp
	for end := time.Now().Add(30 * time.Second); ; {
		w.ops.Add(1)
		call := w.now()
		l.look(call)
		err := l.Release(w.ctx)
		ret := w.now()
		w.heard(l, call, err)
		v := w.saw(err)
		out := output{verdict: v}
		if l.gone {
			out.open = max(l.open, 1)
		}
		switch v {
		case later:
			out.verdict = unknown
		case lost:
			w.losses.Add(1)
		case granted, unknown:
		default:
			w.fail(releasing, "Release gives %v: %v", v, err)
			return
		}
		l.key.add(w.client.id, in, call, ret, out)
		if v == granted && w.chance(100) {
			w.stale(l)
		}
		if out.verdict != unknown || w.client.backend() != l.backend || w.ctx.Err() != nil {
			return
		}
		w.unknowns.Add(1)
		if w.pause(poll); time.Now().After(end) {
			return
		}
	}
}

// stale uses a lease that is over: it does nothing to the next owner.
func (w *stressWorker) stale(l *stressLease) {
	w.pause(w.upTo(time.Duration(w.hold.Load())))
	w.ops.Add(1)
	_, err := l.Renew(w.ctx, &driver.Renewal{TTL: l.ttl})
	switch w.saw(err) {
	case granted:
		w.fail(renewing, "Renew succeeds after a Release that returned nil")
	case lost, unknown, later:
	default:
		w.fail(fourOutcomes, "Renew after a Release gives %v: %v", w.saw(err), err)
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); w.pause(poll) { // answers may be lost on the way
		w.ops.Add(1)
		err = l.Release(w.ctx)
		if err == nil || w.saw(err) == lost || l.remote || w.ctx.Err() != nil {
			return
		}
	}
	w.fail(releasing, "a Release that returned nil is called again, and gives %v: %v", w.saw(err), err)
}

// outlive leaves a lock to its TTL, and tries to get it again until it is granted.
func (w *stressWorker) outlive(l *stressLease) {
	renews := w.chance(300)
	for end := time.Now().Add(4*l.ttl + 2*w.h.Grace); time.Now().Before(end) && !w.done(); {
		w.pause(l.ttl / 16)
		if !time.Now().Before(l.Grant().Expires) && renews {
			switch w.renew(l) {
			case granted: // the server may keep it longer than the lease
				w.release(l)
				return
			case lost:
				return
			}
		}
		if !renews && w.attempt(w.ctx, l.key, driver.Request{}) == granted {
			return
		}
	}
}

// look asks for the holder of a key.
func (w *stressWorker) look(k *stressKey) {
	i, ok := w.client.backend().(driver.Inspector)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, w.callTime())
	defer cancel()
	w.ops.Add(1)
	call := w.now()
	state, err := i.Lookup(ctx, k.name)
	ret := w.now()
	switch v := w.saw(err); v {
	case granted:
		if out, sure := seen(state); sure {
			k.add(w.client.id, input{kind: lookOp}, call, ret, out)
		}
	case unknown, later, refused: // the user may have no right to look
	default:
		w.fail(inspecting, "Lookup gives %v: %v", v, err)
	}
}

// seen returns what Lookup says of the holder. It is unsure if there seems to be none, and the
// majority of a holder may be with a node that did not answer.
func seen(state *driver.State) (out output, sure bool) {
	switch {
	case state == nil:
		return out, true
	case len(state.Holders) > 0:
		out.holder, out.fence = state.Holders[0].Owner+" ", state.Holders[0].Fence
		return out, true
	}
	return out, !slices.ContainsFunc(state.Nodes, func(n driver.NodeState) bool { return n.Err != "" })
}

// breakLock takes a lock away from its holder, by another client.
func (w *stressWorker) breakLock(l *stressLease) {
	if w.session() || !w.info.Features.Has(driver.FeatureFencing) { // others' locks may go with the session
		return
	}
	other := w.clients[w.rng.IntN(len(w.clients))]
	admin, ok := other.backend().(driver.Admin)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, w.callTime())
	defer cancel()
	in := l.in
	in.kind = breakOp
	w.ops.Add(1)
	call := w.now()
	err := admin.Break(ctx, l.key.name, driver.Holder{Fence: l.fence})
	ret := w.now()
	v := w.saw(err)
	switch {
	case v == lost && w.quorum.Load(), v == later: // it may be removed on some nodes
		v = unknown
	case v == refused:
		return
	case v != granted && v != lost && v != unknown:
		w.fail(breaking, "Break gives %v: %v", v, err)
		return
	}
	l.key.add(other.id, in, call, ret, output{verdict: v})
}
