package redlocktest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

var faultCases = []testCase{
	{name: "outage", needs: []condition{outages}, do: outage},
	{name: "outage-release", needs: []condition{outages}, do: outageRelease},
	{name: "outage-open", needs: []condition{opens, restarts}, do: outageOpen},
	{name: "restart", needs: []condition{restarts}, do: restart},
	{name: "restart-forgets", features: driver.FeatureFencing, needs: []condition{restarts}, do: restartForgets},
	{name: "restart-waiter", needs: []condition{outages}, do: restartWaiter},
	{name: "restart-watch", needs: []condition{watches, restarts}, do: restartWatch},
	{name: "partition-watch", needs: []condition{watches, partitions}, do: partitionWatch},
	{name: "pause", needs: []condition{pauses}, do: pauseServers},
	{name: "partition", needs: []condition{partitions}, do: partition},
	{name: "partition-renewed", without: driver.FeatureSession, needs: []condition{partitions}, do: partitionHeals},
	{name: "slow-expires", ttl: true, needs: []condition{slows}, do: slowExpires},
	{name: "slow-deadline", needs: []condition{slows}, do: slowDeadline},
	{name: "lost-reply-acquire", needs: []condition{drops}, do: lostAcquire},
	{name: "lost-reply-renew", without: driver.FeatureSession, needs: []condition{drops}, do: lostRenew},
	{name: "lost-reply-release", needs: []condition{drops}, do: lostRelease},
	{name: "session-end", features: driver.FeatureSession, needs: []condition{cuts}, do: sessionEnd},
	{name: "session-release", features: driver.FeatureSession, needs: []condition{cuts}, do: sessionRelease},
	{name: "session-lost", features: driver.FeatureSession, needs: []condition{cuts}, do: sessionLost},
	{name: "layout", needs: []condition{layouts}, do: unknownLayout},
}

// inject begins a fault, and returns a function that ends it. If the case does not call that
// function, the fault ends after the case.
func (r *run) inject(begin, end func() error) (heal func()) {
	heal = sync.OnceFunc(func() {
		if err := end(); err != nil {
			r.record(nothingShown, "the harness could not end its fault: %v", err)
		}
	})
	r.mu.Lock()
	r.cleanups = append(r.cleanups, heal)
	r.mu.Unlock()
	r.must(begin(), "begin its fault")
	return heal
}

// down kills the servers, and starts them again with their data.
func (r *run) down() (heal func()) {
	return r.inject(r.h.Faults.Kill, func() error { return r.h.Faults.Restart(true) })
}

// disconnect makes the servers unreachable for two clients, by the gravest fault that the harness has,
// and returns a function that ends it.
func (r *run) disconnect(a, b driver.Backend) (heal func()) {
	switch f := r.h.Faults; {
	case f.Kill != nil && f.Restart != nil:
		return r.down()
	case f.Pause != nil && f.Resume != nil:
		return r.inject(f.Pause, f.Resume)
	default:
		return r.inject(
			func() error { return errors.Join(f.Partition(a), f.Partition(b)) },
			func() error { return errors.Join(f.Heal(a), f.Heal(b)) })
	}
}

// outcomeUnknown asserts that the error of a call that got no answer is unknown, or at most a
// refusal for now.
func (r *run) outcomeUnknown(call string, err error) {
	switch v := r.saw(err); v {
	case unknown, later:
	case granted:
		r.record(fourOutcomes, "%s succeeds, and no answer can have come", call)
	default:
		r.record(fourOutcomes, "%s gives %v, and its outcome is unknown: no answer came that says so: %v", call, v, err)
	}
}

// outage checks that a missing answer is reported neither as contention nor as loss nor as misuse, that
// an invalid request is refused without a server, and that an operator is not told that all is well.
func outage(r *run) {
	a, b := r.pair()
	free, taken := r.key(), r.key()
	l := r.grant(a, driver.Request{Key: taken})
	r.release(r.grant(b, driver.Request{Key: free})) // both are connected
	heal := r.disconnect(a, b)
	for _, key := range []string{free, taken} {
		// The driver must bound one attempt: the only deadline here is the watchdog's.
		_, err := r.tryCtx(context.WithoutCancel(r.ctx), b, driver.Request{Key: key})
		r.outcomeUnknown("Acquire during an outage", err)
		ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
		_, err = r.tryCtx(ctx, b, driver.Request{Key: key, Wait: true})
		cancel()
		r.outcomeUnknown("Acquire that may wait, during an outage,", err)
	}
	err := r.renewSoon(l)
	if !r.info.Features.Has(driver.FeatureSession) { // whose locks may be lost with it
		r.outcomeUnknown("Renew during an outage", err)
	} else if r.saw(err) == granted {
		r.record(fourOutcomes, "Renew succeeds during an outage, and no answer can have come")
	}
	r.refusedRequest(driver.Request{Owner: r.owner(), TTL: r.long()}, "key", "an empty key during an outage")
	r.refusedRequest(driver.Request{Key: r.key(), Owner: r.owner(), TTL: r.long(), Mode: 9}, "mode", "mode 9 during an outage")
	if r.info.MaxTTL != 0 {
		r.refusedRequest(driver.Request{Key: r.key(), Owner: r.owner(), TTL: 1}, "TTL", "a TTL of 1 ns during an outage")
	}
	r.inspectNothing(b, free)
	heal()
	r.release(r.eventually(b, driver.Request{Key: free}))
}

// renewSoon renews a lease under a context that soon ends.
func (r *run) renewSoon(l *lease) error {
	ctx, cancel := context.WithTimeout(r.ctx, 50*time.Millisecond)
	defer cancel()
	_, err := l.Renew(ctx, &driver.Renewal{TTL: r.long()})
	return err
}

// inspectNothing asserts that all that an operator asks fails while no server can answer.
func (r *run) inspectNothing(b driver.Backend, key string) {
	inspector, ok := b.(driver.Inspector)
	if !ok {
		return
	}
	calls := map[string]func(context.Context) error{
		"Lookup": func(ctx context.Context) error { _, err := inspector.Lookup(ctx, key); return err },
		"List": func(ctx context.Context) error {
			return inspector.List(ctx, key, func(*driver.State) bool { return true })
		},
		"Check": func(ctx context.Context) error { _, err := inspector.Check(ctx); return err },
	}
	if admin, ok := b.(driver.Admin); ok {
		calls["Break"] = func(ctx context.Context) error { return admin.Break(ctx, key, driver.Holder{Fence: 1, Session: "1"}) }
	}
	for name, call := range calls {
		ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
		err := call(ctx)
		cancel()
		if v := r.saw(err); v != unknown && v != later {
			r.record(inspecting, "%s gives %v though no server can answer: %v", name, v, err)
		}
	}
}

// outageRelease checks that Release does not return nil, which says that the lock is free,
// while no server can be reached.
func outageRelease(r *run) {
	a, b, key, l := r.holding(driver.Request{})
	r.release(r.grant(b, driver.Request{Key: r.key()}))
	heal := r.disconnect(a, b)
	err := l.Release(r.ctx)
	v := r.saw(err)
	heal()
	switch {
	case v == unknown, v == later, v == lost:
		r.releaseEnded(l)
		r.free(b, key)
	case v != granted:
		r.fatal(releasing, "Release gives %v though no server can answer: %v", v, err)
	default:
		v, _, err := r.settle(releasing, "Acquire after an outage", func() error {
			_, err := r.try(b, driver.Request{Key: key})
			return err
		})
		if v == held && r.valid(l) {
			r.fatal(releasing, "Release returned nil though no server could be reached, and the lock is still there: its error was swallowed: %v", err)
		}
	}
}

// outageOpen checks that Open succeeds while the servers are away.
func outageOpen(r *run) {
	heal := r.down()
	b, err := r.openURL(r.h.URL, r.h.Prefix)
	heal()
	if err != nil {
		r.fatal(opening, "Open fails while the servers are away: %v", err)
	}
	r.release(r.eventually(b, driver.Request{Key: r.key()}))
}

// restart checks that after a restart with their data servers still have the locks, and clients
// reconnect.
func restart(r *run) {
	_, b, key, l := r.holding(driver.Request{})
	fence := l.Grant().Fence
	r.down()()
	if r.info.Features.Has(driver.FeatureSession) {
		next := r.eventually(b, driver.Request{Key: key})
		r.rises(fence, next.Grant().Fence)
		r.lost(l)
		return
	}
	r.holds(b, key, l)
	r.release(l)
	next := r.again(b, key)
	r.rises(fence, next.Grant().Fence)
}

// restartForgets checks that tokens rise over a restart without data, and that the former
// owner's renewal does not succeed.
func restartForgets(r *run) {
	f := r.h.Faults
	a, b, key, l := r.holding(driver.Request{TTL: r.short()})
	g := l.Grant()
	r.inject(f.Kill, func() error { return f.Restart(false) })()
	next := r.eventually(b, driver.Request{Key: key})
	r.rises(g.Fence, next.Grant().Fence)
	r.lost(l)
	r.holds(a, key, next)
}

// restartWaiter checks that a waiter goes on when the servers are back, also for the second time.
func restartWaiter(r *run) {
	a, b, key, l := r.holding(driver.Request{})
	woken := r.async(func() {
		next, _ := r.eventuallyRule(waiting, b, driver.Request{Key: key, Wait: true}, nil)
		r.release(next)
	})
	for range 2 {
		r.pause(50 * time.Millisecond)
		r.disconnect(a, b)()
	}
	if r.info.Features.Has(driver.FeatureSession) {
		r.releaseEnded(l)
	} else {
		r.release(l)
	}
	r.join(woken)
}

// restartWatch checks that a watch signals a release after the servers' restart, whether or not
// it signalled the break of the connection. If the restart frees the key, it must signal that.
func restartWatch(r *run) {
	_, b, key, l := r.holding(driver.Request{})
	ch := r.watch(r.ctx, b, key)
	r.down()()
	if r.info.Features.Has(driver.FeatureSession) {
		r.value(ch, "the restart ended the session that had the lock")
		return
	}
	r.valueAfter(ch, func() { r.release(l) }, "a release after the servers' restart")
}

// partitionWatch checks that a watch signals a release that it missed while its connection was cut.
func partitionWatch(r *run) {
	_, b, key, l := r.holding(driver.Request{})
	ch := r.watch(r.ctx, b, key)
	heal := r.cutOff(b)
	r.release(l)
	r.pause(20 * time.Millisecond)
	heal()
	r.value(ch, "the lock was released behind a partition, which is over")
}

// valueAfter asserts that a value comes after free was called. An earlier value, for the break
// of a connection, does not count.
func (r *run) valueAfter(ch <-chan struct{}, free func(), why string) {
	select {
	case <-ch:
	default:
	}
	free()
	r.value(ch, why)
}

// pauseServers checks that an attempt that a paused server reads later leaves no lock. A quorum
// node's server refuses it; with other backends the clean-up may come too late, and then the
// TTL ends the lock.
func pauseServers(r *run) {
	f := r.h.Faults
	a, b := r.pair()
	key := r.key()
	req := driver.Request{Key: key}
	if !r.info.Features.Has(driver.FeatureQuorumNode) && r.info.MaxTTL != 0 {
		req.TTL = r.short()
	}
	r.release(r.grant(a, driver.Request{Key: r.key()}))
	heal := r.inject(f.Pause, f.Resume)
	ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
	defer cancel()
	returned := r.async(func() {
		_, err := r.tryCtx(ctx, a, req)
		r.outcomeUnknown("Acquire of paused servers", err)
	})
	<-ctx.Done()
	r.pause(50 * time.Millisecond) // a clean-up under way is paused too
	heal()
	r.join(returned)
	r.free(b, key)
}

// partition checks three things. A holder that is cut off does not get ErrLost while it may
// still have the lock. The next owner gets the lock only after the lease's end, with a larger
// token. After the link is restored the old holder learns of the loss, and does not disturb the
// new one.
func partition(r *run) {
	a, b, key, l := r.holding(driver.Request{TTL: r.short()})
	g := l.Grant()
	heal := r.cutOff(a)
	err := r.renewSoon(l)
	if r.valid(l) {
		r.outcomeUnknown("Renew behind a partition", err)
	}
	next, _ := r.eventuallyRule(expires, b, driver.Request{Key: key}, nil)
	if r.valid(l) {
		r.fatal(expires, "the next owner was granted while the lease that is cut off has %v to go", left(l))
	}
	r.rises(g.Fence, next.Grant().Fence)
	heal()
	r.lostQuietly(l)
	r.releaseEnded(l)
	r.holds(b, key, next)
}

// partitionHeals checks that a lease whose renewals failed for a while goes on.
func partitionHeals(r *run) {
	a, b, key, l := r.holding(driver.Request{})
	heal := r.cutOff(a)
	err := r.renewSoon(l)
	r.outcomeUnknown("Renew behind a partition", err)
	r.refuse(b, driver.Request{Key: key}, l)
	heal()
	r.renew(l, driver.Renewal{})
	r.release(l)
	r.release(r.again(b, key))
}

const delay = 150 * time.Millisecond

// slowed delays every answer to b.
func (r *run) slowed(b driver.Backend) (heal func()) {
	f := r.h.Faults
	return r.inject(func() error { return f.Slow(b, delay) }, func() error { return f.Slow(b, 0) })
}

// slowExpires checks that the lease counts from before the request and not from the answer.
func slowExpires(r *run) {
	b := r.client()
	r.release(r.grant(b, driver.Request{Key: r.key()}))
	r.slowed(b)
	// A TTL whose drift does not hide the delay.
	ttl := max(r.short(), 10*delay)
	l := r.grant(b, driver.Request{Key: r.key(), TTL: ttl})
	r.notLateBy(l.Grant(), ttl, "Acquire")
	r.notLateBy(r.renew(l, driver.Renewal{TTL: ttl}), ttl, "Renew")
}

func (r *run) notLateBy(g driver.Grant, ttl time.Duration, call string) {
	if most := driver.Expires(time.Now().Add(-delay), ttl); g.Expires.After(most) {
		r.fatal(expires, "the answer took %v, and Expires after %s is %v later than counted from before it", delay, call, g.Expires.Sub(most))
	}
}

// slowDeadline checks that a request whose answer came after ctx's deadline has no effect.
func slowDeadline(r *run) {
	a, b := r.pair()
	r.release(r.grant(a, driver.Request{Key: r.key()}))
	heal := r.slowed(a)
	key := r.key()
	start := time.Now()
	ctx, cancel := context.WithTimeout(r.ctx, delay/3)
	defer cancel()
	seen := make(chan time.Duration, 1)
	context.AfterFunc(ctx, func() { seen <- time.Since(start) })
	_, err := r.tryCtx(ctx, a, driver.Request{Key: key})
	switch v := r.saw(err); {
	case v == granted:
		// A driver that finds the answer and the deadline at the same time may take either.
		if after := <-seen; after > delay*2/3 {
			r.startOver("a deadline of %v was seen after %v", delay/3, after)
		}
		r.fatal(acquiring, "Acquire granted after its deadline: the answer took %v, and the deadline was %v", delay, delay/3)
	case v != unknown && v != later:
		r.fatal(fourOutcomes, "an Acquire whose answer came too late gives %v: %v", v, err)
	case !errors.Is(err, context.DeadlineExceeded):
		r.fatal(acquiring, "an Acquire whose deadline passed gives an error that does not wrap it: %v", err)
	}
	heal()
	r.nothingStored(b, key)
	r.free(b, key)
}

// drop loses the next answer to b.
func (r *run) drop(b driver.Backend) {
	r.must(r.h.Faults.DropReply(b), "drop a reply")
}

// lostAcquire loses the answer of a grant. The driver must either recognize its own attempt and
// go on, or undo it.
func lostAcquire(r *run) {
	a, b := r.pair()
	for range 3 {
		key := r.key()
		r.release(r.grant(a, driver.Request{Key: r.key()}))
		r.drop(a)
		l, err := r.try(a, driver.Request{Key: key})
		if v := r.saw(err); v == granted {
			r.holds(b, key, l)
			r.release(l)
		} else {
			r.outcomeUnknown("Acquire whose reply was lost", err)
		}
		r.nothingStored(b, key)
		r.free(b, key)
	}
}

// lostRenew loses the answer of a renewal, and checks that this is not reported as a loss.
func lostRenew(r *run) {
	a, b, key, l := r.holding(driver.Request{})
	r.drop(a)
	if _, err := l.Renew(r.ctx, &driver.Renewal{TTL: r.long()}); err != nil {
		r.outcomeUnknown("Renew whose reply was lost", err)
	}
	r.holds(b, key, l)
	r.release(l)
}

// lostRelease loses the answer of a release, and checks that the next Release knows the outcome.
func lostRelease(r *run) {
	a, b, key, l := r.holding(driver.Request{})
	r.drop(a)
	if v := r.saw(l.Release(r.ctx)); v != granted && v != lost && v != unknown && v != later {
		r.fatal(releasing, "Release whose reply was lost gives %v", v)
	}
	r.releaseEnded(l)
	next := r.eventually(b, driver.Request{Key: key})
	r.releaseEnded(l)
	r.holds(b, key, next)
}

// sessionEnd checks that the locks of a session end with it, and that Lost is closed by itself
// before the lease's end.
func sessionEnd(r *run) {
	a, b := r.pair()
	key, other := r.key(), r.key()
	req := driver.Request{Key: key}
	if r.info.MaxTTL != 0 {
		req.TTL = max(r.short(), 2*time.Second*time.Duration(r.scale))
	}
	l, bystander := r.grant(a, req), r.grant(b, driver.Request{Key: other})
	g := l.Grant()
	r.endSession(a)
	if g.Lost != nil {
		r.lostInTime(g)
	}
	r.lost(l)
	next := r.eventually(b, driver.Request{Key: key})
	r.rises(g.Fence, next.Grant().Fence)
	r.holds(a, other, bystander)
	r.release(r.eventually(a, driver.Request{Key: r.key()})) // a new session answers
}

func (r *run) endSession(b driver.Backend) {
	r.must(r.h.Faults.EndSession(b), "end the session")
}

// lostInTime asserts that Lost is closed before the lease's own end.
func (r *run) lostInTime(g driver.Grant) {
	end := r.left()
	if !g.Expires.IsZero() {
		end = min(end, time.Until(g.Expires))
	}
	t := time.NewTimer(end)
	defer t.Stop()
	select {
	case <-g.Lost:
	case <-t.C:
		if !g.Expires.IsZero() && r.left() > 0 {
			r.suspect(losing, "the session was ended, and Lost was not closed before the lease's own end")
		}
		r.fatal(losing, "the session was ended, and Lost was not closed")
	}
}

// sessionLost checks that Lost is closed once any call has returned ErrLost.
func sessionLost(r *run) {
	a := r.client()
	l := r.grant(a, driver.Request{Key: r.key()})
	c := l.Grant().Lost
	if c == nil {
		r.pass("grants have no channel Lost")
	}
	r.endSession(a)
	r.lostQuietly(l)
	if !over(c) {
		r.fatal(losing, "the session was ended, Renew says that the lease is lost, and Lost is not closed yet")
	}
}

// sessionRelease checks that the lock is free after Release returned nil or ErrLost, even if
// the server notices the end of a session later than the client.
func sessionRelease(r *run) {
	a, b, key, l := r.holding(driver.Request{})
	r.endSession(a)
	r.releaseEnded(l)
	r.release(r.takes(releasing, b, key, "Release of a lease whose session was ended gave nil or ErrLost, and the server still has the lock"))
}

// unknownLayout checks that data in the unknown layout of another release is not taken for a
// free lock.
func unknownLayout(r *run) {
	key := r.key()
	r.release(r.grant(r.client(), driver.Request{Key: key}))
	var undo func() error
	heal := r.inject(func() (err error) {
		undo, err = r.h.FutureLayout()
		return err
	}, func() error { return undo() })
	l, err := r.try(r.open(), driver.Request{Key: key})
	switch v := r.saw(err); v {
	case granted:
		r.fatal(layout, "what is stored has a layout that this release cannot know, and a lock was granted with token %d", l.Grant().Fence)
	case refused, later:
	default:
		r.fatal(layout, "what is stored has a layout that this release cannot know, and Acquire gives %v, not ErrRefused: %v", v, err)
	}
	heal()
	r.release(r.eventually(r.open(), driver.Request{Key: key}))
}
