package redlocktest

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redlock-go/redlock/driver"
)

var cancelCases = []testCase{
	{name: "before", do: func(r *run) { ctx, _ := ended(); r.endedBefore(ctx) }},
	{name: "deadline-before", do: func(r *run) { _, ctx := ended(); r.endedBefore(ctx) }},
	{name: "during", do: cancelledDuring},
	{name: "cut-off", needs: []condition{partitions}, do: cancelledCutOff},
	{name: "release", do: cancelledRelease},
	{name: "renew", do: cancelledRenew},
	{name: "waiting", do: waitEnds},
}

// ended returns a cancelled context, and a context whose deadline has passed.
func ended() (cancelled, expired context.Context) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancel = context.WithDeadline(context.Background(), time.Now().Add(-time.Second))
	cancel()
	return cancelled, expired
}

// endedBefore checks that Acquire does nothing under a context that has ended.
func (r *run) endedBefore(ctx context.Context) {
	a, b := r.pair()
	for _, wait := range []bool{false, true} {
		key := r.key()
		_, err := r.tryCtx(ctx, a, driver.Request{Key: key, Wait: wait})
		switch {
		case err == nil:
			r.fatal(acquiring, "Acquire granted under a context with the error %v", ctx.Err())
		case !errors.Is(err, ctx.Err()):
			r.fatal(acquiring, "under a context with the error %v Acquire gives %v", ctx.Err(), err)
		}
		r.nothingStored(b, key)
		r.free(b, key)
	}
}

// cancelledDuring cancels at instants spread over the whole call. The result of Acquire must be
// true: after an error nothing is left, after a grant the lock is held. On a busy machine the
// cancellation often comes too late; then there are more rounds.
func cancelledDuring(r *run) {
	a, b := r.pair()
	took := r.howLong(a)
	rounds := r.h.times(60)
	var keys []string
	for cancelled := 0; len(keys) < rounds || cancelled < rounds/3 && len(keys) < 5*rounds; {
		key := r.key()
		keys = append(keys, key)
		ctx, cancel := context.WithCancel(context.Background())
		t := time.AfterFunc(rand.N(2*took), cancel)
		l, err := r.tryCtx(ctx, a, driver.Request{Key: key, Wait: len(keys)%2 == 0})
		t.Stop()
		cancel()
		switch {
		case err == nil:
			r.refuse(b, driver.Request{Key: key}, l)
			r.releaseCtx(ctx, l)
		case errors.Is(err, context.Canceled):
			cancelled++
		case r.saw(err) == unknown, r.saw(err) == later:
		default:
			r.fatal(acquiring, "a cancelled Acquire of a free key gives %v: %v", r.saw(err), err)
		}
	}
	r.nothingStored(b, r.keys())
	for _, key := range keys {
		r.free(b, key)
	}
}

// cancelledCutOff ends attempts, by cancellation and by deadline, while nothing passes between their
// client and the servers for a while, so that the servers read their requests later.
func cancelledCutOff(r *run) {
	a, b := r.pair()
	r.release(r.grant(a, driver.Request{Key: r.key()})) // it is connected
	const n, early = 8, 20 * time.Millisecond
	keys := make([]string, n)
	for i := range keys {
		keys[i] = r.key()
	}
	heal := r.cutOff(a)
	returned := r.async(func() {
		r.together(n, func(i int) {
			ctx, cancel := context.WithCancel(context.Background())
			if i%2 == 0 {
				ctx, cancel = context.WithTimeout(context.Background(), early)
			}
			t := time.AfterFunc(early, cancel)
			l, err := r.tryCtx(ctx, a, driver.Request{Key: keys[i]})
			t.Stop()
			cancel()
			switch v := r.saw(err); {
			case v == granted:
				r.refuse(b, driver.Request{Key: keys[i]}, l)
				r.releaseCtx(ctx, l)
			case v != unknown && v != later:
				r.fatal(acquiring, "a cancelled Acquire of a free key gives %v behind a link that carries nothing: %v", v, err)
			}
		})
	})
	r.pause(15 * early)
	heal()
	r.join(returned)
	r.nothingStored(b, r.keys())
	for _, key := range keys {
		r.free(b, key)
	}
}

// howLong measures an Acquire, several times, so that a single slow one does not count.
func (r *run) howLong(b driver.Backend) time.Duration {
	took := time.Hour
	for range 3 {
		start := time.Now()
		l := r.grant(b, driver.Request{Key: r.key()})
		took = min(took, time.Since(start))
		r.release(l)
	}
	return max(took, 20*time.Microsecond)
}

// cancelledRelease checks that a deferred Release works after the caller's context has ended.
func cancelledRelease(r *run) {
	a, b := r.pair()
	cancelled, expired := ended()
	for _, ctx := range []context.Context{cancelled, expired} {
		key := r.key()
		l := r.grant(a, driver.Request{Key: key})
		r.releaseCtx(ctx, l)
		r.release(r.takes(undoes, b, key, "Release under a context with the error %v left the key", ctx.Err()))
	}
}

// releaseCtx releases a valid lease under a context that may have ended.
func (r *run) releaseCtx(ctx context.Context, l *lease) {
	v, doubtful, err := r.settle(undoes, "Release under a context that may have ended", func() error {
		err := l.Release(ctx)
		if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			r.fatal(undoes, "Release under a context that has ended gives that context's error: %v", err)
		}
		return err
	})
	if v != granted && (v != lost || !doubtful && r.valid(l)) {
		r.fatal(releasing, "Release gives %v: %v", v, err)
	}
}

// cancelledRenew checks that the end of a context is not reported as a loss.
func cancelledRenew(r *run) {
	_, b, key, l := r.holding(driver.Request{})
	cancelled, expired := ended()
	for _, ctx := range []context.Context{cancelled, expired} {
		_, err := l.Renew(ctx, &driver.Renewal{TTL: r.long()})
		switch v := r.saw(err); v {
		case granted, unknown:
		case lost:
			if !r.valid(l) {
				r.startOver("a lease ended under the case")
			}
			r.fatal(fourOutcomes, "Renew under a context with the error %v says ErrLost, and the lock is there: %v", ctx.Err(), err)
		default:
			r.fatal(fourOutcomes, "Renew under a context with the error %v gives %v: %v", ctx.Err(), v, err)
		}
	}
	r.holds(b, key, l)
	r.release(l)
}
