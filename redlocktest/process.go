package redlocktest

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Cases in which a client is a process of its own, which is killed or stopped.
var processCases = []testCase{
	{name: "exclude", needs: []condition{processes}, do: processesExclude},
	{name: "killed-holder", needs: []condition{processes}, do: killedHolder},
	{name: "clocks", needs: []condition{processes, ownClocks}, do: processClocks},
	{name: "killed-waiter", features: driver.FeatureQueueing, needs: []condition{processes}, do: killedWaiter},
	{name: "stopped-holder", ttl: true, needs: []condition{processes}, do: stoppedHolder},
}

// ownClocks: see Harness.LocalClock.
var ownClocks = offers("clients with clocks of their own", func(s *suite) bool { return !s.h.LocalClock })

// process opens a backend in a process of its own.
func (r *run) process() *Client {
	p, err := r.startProcess(rand.Uint64())
	r.must(err, "start a process")
	return p
}

// startProcess opens a backend in a process with a wall clock of its own: behind the machine's by
// seconds to hours, ahead of it in the next process, and so on.
func (r *run) startProcess(random uint64) (*Client, error) {
	ahead := 2 * time.Second << (random % 13)
	if r.processes.Add(1)%2 == 1 {
		ahead = -ahead
	}
	p, err := r.h.Process()
	if err != nil {
		return nil, err
	}
	r.keep(p)
	if !r.h.LocalClock {
		r.setClock(p, ahead)
	}
	return p, nil
}

// setClock sets the wall clock of a process that has no lock yet, and reports whether it could.
func (r *run) setClock(p *Client, ahead time.Duration) bool {
	ctx, cancel := context.WithTimeout(r.ctx, r.h.cleanupTimeout())
	defer cancel()
	err := p.setClock(ctx, ahead)
	if err != nil {
		r.note("a process keeps the machine's clock: %v", err)
	}
	return err == nil
}

// processClocks: neither tokens nor the end of a lock go by the clock of a client, which may be
// wrong by an hour.
func processClocks(r *run) {
	sound := r.client()
	r.together(2, func(i int) {
		ahead := []time.Duration{time.Hour, -time.Hour}[i]
		p, err := r.h.Process()
		r.must(err, "start a process")
		r.keep(p)
		if !r.setClock(p, ahead) {
			return
		}
		key := r.key()
		l := r.grant(p, driver.Request{Key: key})
		r.tokenOfServer(l, ahead)
		r.refuse(sound, driver.Request{Key: key}, l)
		r.release(l)
		l = r.grant(sound, driver.Request{Key: key})
		r.refuse(p, driver.Request{Key: key}, l)
		r.release(l)
		if r.info.MaxTTL == 0 {
			return
		}
		clients := []driver.Backend{p, sound}
		r.together(2, func(i int) { // either is the holder that dies
			key := r.key()
			old := r.grant(clients[i], driver.Request{Key: key, TTL: r.short()})
			r.release(r.succeed(clients[1-i], key, old, false))
		})
	})
}

// processesExclude: owners in several processes each have the lock alone, and their tokens rise.
func processesExclude(r *run) {
	const n = 4
	clients, key := []driver.Backend{r.client()}, r.key()
	for range n - 1 {
		clients = append(clients, r.process())
	}
	get := func(i int) *lease { return r.eventually(clients[i], driver.Request{Key: key, Wait: true}) }
	r.serial(n, r.h.times(12), get, r.rising())
}

// killedHolder: the lock of a killed process becomes free, but not before its TTL ends, unless
// its session ends with the process; and the next token is larger.
func killedHolder(r *run) {
	p, key := r.process(), r.key()
	l := r.grant(p, driver.Request{Key: key, TTL: r.short()})
	g := l.Grant()
	p.Kill()
	next, _ := r.eventuallyRule(expires, r.client(), driver.Request{Key: key}, nil)
	if early := time.Until(g.Expires); early > 0 && !r.info.Features.Has(driver.FeatureSession) {
		r.fatal(expires, "the holder's process was killed, and the next owner was granted %v before the end of its lease", early)
	}
	r.rises(g.Fence, next.Grant().Fence)
	r.release(next)
}

// killedWaiter: a process that is killed in the queue does not keep the lock from the next.
func killedWaiter(r *run) {
	a, b, p := r.client(), r.open(), r.process()
	key := r.key()
	l := r.grant(a, driver.Request{Key: key})
	dead := r.async(func() { _, _ = r.try(p, driver.Request{Key: key, TTL: r.short(), Wait: true}) })
	r.pause(50 * time.Millisecond)
	woken := r.async(func() { r.release(r.eventually(b, driver.Request{Key: key, Wait: true})) })
	r.pause(20 * time.Millisecond)
	p.Kill()
	r.join(dead)
	r.release(l)
	r.await(woken, waiting, "a process was killed while it waited, and the next waiter does not get the lock")
	r.join(woken)
	r.free(a, key)
}

// serves reports whether anybody can get a lock now, of a key of its own.
func (r *run) serves(b driver.Backend) bool {
	key := r.key()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && r.ctx.Err() == nil; r.pause(poll) {
		if l, err := r.try(b, driver.Request{Key: key}); err == nil {
			r.release(l)
			return true
		}
	}
	return false
}

// stoppedHolder: a process that stands still for longer than its lease finds the lease lost
// when it goes on, and does not disturb the next owner.
func stoppedHolder(r *run) {
	p, key := r.process(), r.key()
	l := r.grant(p, driver.Request{Key: key, TTL: r.short()})
	resume := r.inject(p.Pause, p.Resume)
	b := r.client()
	for r.h.LocalClock && r.ctx.Err() == nil && !r.serves(b) { // it was stopped while it had a lock of the file itself
		resume()
		r.pause(10 * time.Millisecond)
		resume = r.inject(p.Pause, p.Resume)
	}
	next, _ := r.eventuallyRule(expires, b, driver.Request{Key: key}, nil)
	if early := time.Until(l.Grant().Expires); early > 0 {
		r.fatal(expires, "the holder's process was stopped, and the next owner was granted %v before the end of its lease", early)
	}
	resume()
	if _, err := l.Renew(context.WithoutCancel(r.ctx), &driver.Renewal{TTL: r.long()}); r.saw(err) == granted {
		r.fatal(renewing, "a process stood still until its lease was over, and renewed it when another had the lock")
	}
	r.lost(l)
	r.holds(b, key, next)
	r.release(next)
}
