package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// keysLeft is the metric of orphans.
const keysLeft = "keys left"

var orphanCases = []string{"cancelled, 1 server", "cancelled, 5 servers", "slow fifth server"}

// orphans counts locks that nobody holds and nobody can take.
func orphans(ctx context.Context, r *Runner) ([]*Section, error) {
	s := &Section{
		Title: "Keys left behind",
		Text: "A key that is left behind blocks its lock until its TTL ends. Cancelled: 200 acquisitions through delays of 1 to 5 ms each way, whose contexts end after up to 25 ms; what was granted is given back. " +
			"Slow fifth server: 60 locks, taken and given back, where the fifth answers after 10 to 40 ms. Keys are counted one second later, on all servers; fencing counters are no locks.",
		Key: keysLeft,
	}
	mine := func(c Contestant) bool { return c.Kind == Ours || c.Kind == Peer }
	for i, name := range orphanCases {
		n := 5
		if i == 0 {
			n = 1
		}
		servers, ok, err := r.servers(ctx, server.KindRedis, n)
		if err != nil || !ok {
			return nil, err
		}
		use, delays := cancelSome, delayAll
		if i == 2 {
			use, delays = cycleAll, delayLast
		}
		c := &testCase{name: name, setup: direct(servers, r.plan.TTL), turn: orphanTurn(servers, use, delays)}
		if err := r.compareOnce(ctx, s, c, r.serving(server.KindRedis, n, mine)); err != nil {
			return nil, err
		}
	}
	return []*Section{s}, nil
}

func delayAll(proxies []*fault.Proxy) {
	for _, p := range proxies {
		p.Delay(fault.ToServer, time.Millisecond, 4*time.Millisecond)
		p.Delay(fault.ToClient, time.Millisecond, 4*time.Millisecond)
	}
}

func delayLast(proxies []*fault.Proxy) {
	proxies[len(proxies)-1].Delay(fault.ToServer, 10*time.Millisecond, 30*time.Millisecond)
}

// orphanTurn uses locks through delays and counts what is left.
func orphanTurn(servers []*server.Server, use func(context.Context, Locker, string, *turn), delays func([]*fault.Proxy)) func(context.Context, *entry) *turn {
	return func(ctx context.Context, e *entry) *turn {
		t := &turn{}
		setup, proxies, err := proxied(servers, e.setup.TTL)
		if err != nil {
			t.err = err
			return t
		}
		defer closeAll(proxies)
		l, err := e.contestant.Open(ctx, setup)
		if err != nil {
			t.err = err
			return t
		}
		if h, err := l.Lock(ctx, "orphans/first", false); err == nil { // connects
			_ = h.Unlock() // a failure comes again
		}
		delays(proxies)
		keys := "orphans/" + strconv.FormatInt(time.Now().UnixNano(), 36) + "/"
		use(ctx, l, keys, t)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
		left, err := countKeys(servers, keys)
		if err = errors.Join(err, l.Close()); err != nil {
			t.fail(err)
		}
		t.add(keysLeft, Count, float64(left))
		return t
	}
}

// cancelSome takes locks under contexts that end at any moment.
func cancelSome(ctx context.Context, l Locker, keys string, t *turn) {
	const calls, longest = 200, 25 * time.Millisecond
	granted := make([]bool, calls)
	err := inParallel(calls, func(i int) error {
		short, cancel := context.WithTimeout(ctx, rand.N(longest))
		defer cancel()
		h, err := l.Lock(short, keys+strconv.Itoa(i), false)
		if err != nil {
			return nil // most are to fail
		}
		granted[i] = true
		return h.Unlock()
	})
	if err != nil {
		t.fail(err)
	}
	n := 0
	for _, g := range granted {
		if g {
			n++
		}
	}
	t.add("cancelled", Count, float64(calls-n))
	t.add("granted", Count, float64(n))
}

// cycleAll takes and gives back.
func cycleAll(ctx context.Context, l Locker, keys string, t *turn) {
	const cycles = 60
	n := 0
	for i := range cycles {
		h, err := l.Lock(ctx, keys+strconv.Itoa(i), false)
		if err == nil {
			err = h.Unlock()
		}
		if err != nil {
			t.fail(err)
			continue
		}
		n++
	}
	t.add("granted", Count, float64(n))
}

// countKeys counts the locks under these keys, whatever a library puts before them.
func countKeys(servers []*server.Server, keys string) (n int, err error) {
	for _, s := range servers {
		reply, err := s.Do("KEYS", "*"+keys+"*")
		if err != nil {
			return n, err
		}
		list, _ := reply.([]any)
		for _, k := range list {
			if name, _ := k.(string); !strings.HasPrefix(name, counterPrefix) {
				n++
			}
		}
	}
	return n, nil
}

// counterPrefix begins the names of this module's fencing counters.
const counterPrefix = "redlock1:fence"
