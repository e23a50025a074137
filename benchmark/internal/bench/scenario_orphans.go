package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// keysLeft is the metric of orphans.
const keysLeft = "keys left"

// The cases of orphans.
const (
	cancelledOne  = "cancelled, 1 server"
	cancelledFive = "cancelled, 5 servers"
	refusedFive   = "refused by three of 5 servers"
	slowFifth     = "slow fifth server"
	cancelledPG   = "cancelled, postgres"
)

var orphanCases = []string{cancelledOne, cancelledFive, refusedFive, slowFifth}

// orphans counts locks that nobody holds and nobody can take.
func orphans(ctx context.Context, r *Runner) ([]*testCase, error) {
	s := &Section{
		Title: "Keys left behind",
		Text: "A key that is left behind blocks its lock until its TTL ends. Cancelled: 200 acquisitions through delays of 1 to 5 ms each way, whose contexts end after up to 25 ms; what was granted is given back. " +
			"Refused: 30 attempts while another client has the keys on three of the five; it gives them back later. " +
			"Slow fifth server: " + strconv.Itoa(r.plan.Cycles) + " locks, taken and given back, where the fifth answers after 10 to 40 ms. Keys are counted " + spoken(r.plan.Rest) + " later, on all servers; fencing counters and lines of waiters are no locks. " +
			"Of PostgreSQL it is the advisory locks that some connection still has.",
		Key: keysLeft,
	}
	mine := func(c Contestant) bool { return (c.Kind == Ours || c.Kind == Peer) && !c.Local }
	var cases []*testCase
	const use = 400 * time.Millisecond // about
	add := func(name string, kind server.Kind, n int, probe orphanProbe) error {
		servers, ok, err := r.servers(ctx, kind, n)
		if err != nil || !ok {
			return err
		}
		c := &testCase{
			section: s, name: name + on(kind), contestants: r.serving(kind, n, mine), servers: servers, setup: direct(servers, r.plan.TTL),
			rounds: 1, cold: true, together: true, fixed: r.plan.Rest + use, measurement: r.orphanMeasurement(probe),
		}
		if name == refusedFive {
			c.fixed += 2 * time.Second // libraries try again
		}
		if name == slowFifth {
			c.fixed += time.Duration(r.plan.Cycles) * 50 * time.Millisecond
		}
		if kind == server.KindPostgres { // one after the other: its locks do not say whose they are
			c.name, c.together, c.fixed = name, false, time.Duration(len(c.contestants))*c.fixed
		}
		cases = append(cases, c)
		return nil
	}
	if err := add(cancelledOne, server.KindRedis, 1, cancelSome); err != nil {
		return nil, err
	}
	kinds, err := r.fives(ctx)
	if err != nil {
		return nil, err
	}
	for _, kind := range kinds {
		for _, p := range []struct {
			name  string
			probe orphanProbe
		}{{cancelledFive, cancelSome}, {refusedFive, refuseAll}, {slowFifth, r.cycleAll}} {
			if err := add(p.name, kind, 5, p.probe); err != nil {
				return nil, err
			}
		}
	}
	return cases, add(cancelledPG, server.KindPostgres, 1, cancelSome)
}

// A trial is what an orphanProbe has.
type trial struct {
	*measurement
	entry   *entry
	locker  Locker // through the proxies
	proxies []*fault.Proxy
	keys    string
}

// An orphanProbe uses locks so that some may be left.
type orphanProbe func(ctx context.Context, t *trial) error

// orphanMeasurement uses locks through proxies and counts what is left.
func (r *Runner) orphanMeasurement(probe orphanProbe) func(context.Context, *entry, time.Duration) *measurement {
	return func(ctx context.Context, e *entry, _ time.Duration) *measurement {
		t := &measurement{}
		setup, proxies, err := proxied(e.setup.Nodes, e.setup.TTL)
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
		keys := "orphans/" + newOwner() + "/"
		if err := probe(ctx, &trial{t, e, l, proxies, keys}); err != nil {
			t.fail(err)
		}
		select {
		case <-time.After(r.plan.Rest):
		case <-ctx.Done():
		}
		left, err := e.countLeft(ctx, keys)
		if err = errors.Join(err, l.Close()); err != nil {
			t.fail(err)
		}
		t.add(keysLeft, Count, float64(left))
		return t
	}
}

// cancelSome takes locks under contexts that end at any moment.
func cancelSome(ctx context.Context, t *trial) error {
	for _, p := range t.proxies {
		p.Delay(fault.ToServer, time.Millisecond, 4*time.Millisecond)
		p.Delay(fault.ToClient, time.Millisecond, 4*time.Millisecond)
	}
	const calls, longest = 200, 25 * time.Millisecond
	granted := make([]bool, calls)
	err := inParallel(calls, func(i int) error {
		short, cancel := context.WithTimeout(ctx, rand.N(longest))
		defer cancel()
		h, err := t.locker.Lock(short, t.keys+strconv.Itoa(i), false)
		if err != nil {
			return nil // most are to fail
		}
		granted[i] = true
		return h.Unlock()
	})
	n := 0
	for _, g := range granted {
		if g {
			n++
		}
	}
	t.add("not granted", Count, float64(calls-n))
	t.add("granted", Count, float64(n))
	return err
}

// refuseAll asks for keys that another client, who reaches three of five servers, has.
func refuseAll(ctx context.Context, t *trial) error {
	const attempts = 30
	other, err := t.entry.contestant.Open(ctx, t.entry.setup)
	if err != nil {
		return err
	}
	for _, p := range t.proxies[3:] {
		if err := p.Refuse(); err != nil {
			return errors.Join(err, other.Close())
		}
	}
	held := make([]Held, attempts)
	refused := make([]bool, attempts)
	err = inParallel(attempts, func(i int) error {
		h, err := t.locker.Lock(ctx, t.keys+strconv.Itoa(i), false)
		if err != nil {
			return err
		}
		held[i] = h
		h, err = other.Lock(ctx, t.keys+strconv.Itoa(i), false)
		if err == nil {
			return errors.Join(errors.New("two clients have it"), h.Unlock())
		}
		refused[i] = true
		return nil
	})
	n := 0
	for i, h := range held {
		if refused[i] {
			n++
		}
		if h != nil {
			err = errors.Join(err, h.Unlock())
		}
	}
	t.add("not granted", Count, float64(n))
	t.add("granted", Count, float64(attempts))
	return errors.Join(err, other.Close())
}

// cycleAll takes and gives back.
func (r *Runner) cycleAll(ctx context.Context, t *trial) error {
	t.proxies[len(t.proxies)-1].Delay(fault.ToServer, 10*time.Millisecond, 30*time.Millisecond)
	n := 0
	for i := range r.plan.Cycles {
		h, err := t.locker.Lock(ctx, t.keys+strconv.Itoa(i), false)
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
	return nil
}

// countLeft counts the locks under these keys.
func (e *entry) countLeft(ctx context.Context, keys string) (n int, err error) {
	if e.left != nil {
		return e.left(ctx, keys)
	}
	for _, s := range e.servers {
		if s.Kind() == server.KindPostgres {
			return countAdvisory(ctx, s)
		}
		reply, err := s.Do("KEYS", "*"+keys+"*")
		if err != nil {
			return n, err
		}
		list, _ := reply.([]any)
		for _, k := range list {
			if name, _ := k.(string); !strings.HasPrefix(name, besideLocks) {
				n++
			}
		}
	}
	return n, nil
}

// besideLocks begins the names of what this module stores beside its locks: fencing
// counters and the lines of those who wait.
const besideLocks = "redlock1:"

// countAdvisory counts all advisory locks of a server, which do not say for what key
// they are.
func countAdvisory(ctx context.Context, s *server.Server) (n int, err error) {
	c, err := pgx.Connect(ctx, PostgresURL(s.Addr()))
	if err != nil {
		return 0, err
	}
	defer func() { _ = closeConn(c) }() // it has served
	err = c.QueryRow(ctx, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").Scan(&n)
	return n, err
}
