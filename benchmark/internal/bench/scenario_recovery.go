package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// ends is what a lock has that tells its holder of its end.
type ends interface{ Done() <-chan struct{} }

// recovery measures what a holder's death costs the others.
func recovery(ctx context.Context, r *Runner) ([]*Section, error) {
	s := &Section{
		Title: "A holder is cut off",
		Text: fmt.Sprintf("A holder with a TTL of %v is cut off from all servers, as by a partition or a power failure, just after a renewal. Another client waits. The lost signal is when the holder's Done closes; "+
			"it must come before the next grant. Ours grant later than others on purpose: the servers keep a lock for a grace after its TTL (lock-delay), so that clocks that differ cannot make two holders of one lock. PostgreSQL's connection stays open here and is silent.", r.plan.DeadTTL),
		Key:   "next grant p50",
		Plots: []Plot{{Title: "from the cut to the next grant, median", Metric: "next grant p50"}},
	}
	mine := func(c Contestant) bool { return c.Waits && (c.Kind == Ours || c.Kind == Peer) }
	for _, at := range []struct {
		kind  server.Kind
		nodes int
	}{{server.KindRedis, 1}, {server.KindRedis, 5}, {server.KindPostgres, 1}} {
		servers, ok, err := r.servers(ctx, at.kind, at.nodes)
		if err != nil {
			return nil, err
		}
		contestants := r.serving(at.kind, at.nodes, mine)
		if !ok || len(contestants) == 0 {
			continue
		}
		c := &testCase{
			name: plural(at.nodes, string(at.kind)), rounds: r.plan.Deaths,
			setup: direct(servers, r.plan.DeadTTL), turn: cutOff(servers, r.plan.DeadTTL),
		}
		if err := r.compare(ctx, s, c, contestants); err != nil {
			return nil, err
		}
	}
	return []*Section{s}, nil
}

// cutOff measures one death.
func cutOff(servers []*server.Server, ttl time.Duration) func(context.Context, *entry) *turn {
	return func(ctx context.Context, e *entry) *turn {
		t := &turn{}
		setup, proxies, err := proxied(servers, ttl)
		if err != nil {
			t.fail(err)
			return t
		}
		defer closeAll(proxies)
		if err := cutOffOnce(ctx, e, setup, proxies, t); err != nil {
			t.fail(err)
		}
		return t
	}
}

func cutOffOnce(ctx context.Context, e *entry, setup *Setup, proxies []*fault.Proxy, t *turn) (err error) {
	open := func(s *Setup) (Locker, error) { return e.contestant.Open(ctx, s) }
	holder, err := open(setup)
	if err != nil {
		return err
	}
	waiter, err := open(e.setup)
	if err != nil {
		return errors.Join(err, holder.Close())
	}
	key := "recovery/" + strconv.FormatInt(time.Now().UnixNano(), 36)
	lease, err := holder.Lock(ctx, key, true)
	if err == nil {
		err = lease.Renew(ctx)
	}
	if err == nil {
		err = cut(ctx, waiter, lease, key, proxies, t)
	}
	for _, p := range proxies {
		_ = p.Restore() // so that the holder's Close does not have to give up
	}
	_ = holder.Close() // it was cut off: its release may well fail
	return errors.Join(err, waiter.Close())
}

// cut cuts the holder off while another waits.
func cut(ctx context.Context, waiter Locker, lease Held, key string, proxies []*fault.Proxy, t *turn) error {
	start := time.Now()
	for _, p := range proxies {
		p.BlackHole()
	}
	lost := make(chan time.Duration, 1)
	if l, ok := lease.(ends); ok {
		go func() {
			<-l.Done()
			lost <- time.Since(start)
		}()
	}
	next, err := waiter.Lock(ctx, key, true)
	granted := time.Since(start)
	if err != nil {
		return err
	}
	t.series = []series{{"next grant", []time.Duration{granted}}}
	if _, ok := lease.(ends); ok {
		select {
		case at := <-lost:
			t.add("lost signal", Seconds, at.Seconds())
			t.add("lost signal before next grant", Seconds, (granted - at).Seconds())
		case <-time.After(5 * time.Second):
			err = errors.New("the holder was never told")
		}
	}
	return errors.Join(err, next.Unlock())
}
