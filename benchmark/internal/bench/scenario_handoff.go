package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// A baton is what the holders of one key write down for each other.
type baton struct {
	mu       sync.Mutex
	held     bool
	overlaps int
	from     int // who released last; -1: nobody yet
	at       time.Time
	handoffs []time.Duration // to another client
	got      []int           // locks, by client
}

// take is called by a client that has the lock.
func (b *baton) take(client int, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held {
		b.overlaps++
	}
	b.held = true
	b.got[client]++
	if b.from >= 0 && b.from != client {
		b.handoffs = append(b.handoffs, now.Sub(b.at))
	}
}

// give is called by it just before it lets go.
func (b *baton) give(client int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held, b.from, b.at = false, client, time.Now()
}

// handoffTurn lets every client of an entry lock one key, hold it and let go, over and
// over.
func (r *Runner) handoffTurn(slice time.Duration, servers []*server.Server) func(context.Context, *entry) *turn {
	return func(ctx context.Context, e *entry) *turn {
		t := &turn{}
		b := &baton{from: -1, got: make([]int, len(e.lockers))}
		key := r.keys + "handoff/" + strconv.Itoa(len(e.lockers))
		m := startMeter(servers)
		work, stop := context.WithTimeout(ctx, slice)
		defer stop()
		var mu sync.Mutex
		var clients sync.WaitGroup
		for i, l := range e.lockers {
			clients.Go(func() {
				for work.Err() == nil {
					if err := handOver(work, l, key, b, i, r.plan.Hold); err != nil {
						mu.Lock()
						t.fail(err)
						mu.Unlock()
						return
					}
				}
			})
		}
		<-work.Done()
		b.mu.Lock()
		got, handoffs := append([]int(nil), b.got...), append([]time.Duration(nil), b.handoffs...)
		b.mu.Unlock()
		costs := &turn{}
		took := m.stop(costs, max(len(handoffs), 1))
		clients.Wait()

		least, most := extremes(got)
		t.add("locks", PerSecond, float64(sum(got))/took.Seconds())
		t.add("handoffs", PerSecond, float64(len(handoffs))/took.Seconds())
		t.series = []series{{"handoff", handoffs}}
		t.add("least of a client", Count, float64(least))
		t.add("most of a client", Count, float64(most))
		for _, v := range costs.values {
			if v.name == "server commands" || v.name == "client CPU" {
				t.values = append(t.values, v)
			}
		}
		if b.overlaps > 0 {
			t.failed += b.overlaps
			t.err = errors.Join(fmt.Errorf("two clients held the lock at once, %d times", b.overlaps), t.err)
		}
		return t
	}
}

// handOver is one lock of one client. The end of work is no failure.
func handOver(work context.Context, l Locker, key string, b *baton, client int, hold time.Duration) error {
	h, err := l.Lock(work, key, true)
	if err != nil {
		if work.Err() != nil {
			return nil
		}
		return err
	}
	b.take(client, time.Now())
	time.Sleep(hold)
	b.give(client)
	return h.Unlock()
}

func sum(n []int) (total int) {
	for _, v := range n {
		total += v
	}
	return total
}

func extremes(n []int) (least, most int) {
	least, most = n[0], n[0]
	for _, v := range n {
		least, most = min(least, v), max(most, v)
	}
	return least, most
}

// waits picks the contestants that can wait.
func waits(c Contestant) bool { return c.Waits }

// handoff measures waiters on one key.
func handoff(ctx context.Context, r *Runner) ([]*Section, error) {
	var out []*Section
	for _, n := range []int{1, 5} {
		s := handoffSection(n, r.plan.Hold)
		out = append(out, s)
		servers, ok, err := r.servers(ctx, server.KindRedis, n)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		for _, w := range r.plan.Waiters {
			if err := r.handoffCase(ctx, s, plural(w, "client"), w, direct(servers, r.plan.TTL), servers, r.serving(server.KindRedis, n, waits)); err != nil {
				return nil, err
			}
		}
	}
	s := handoffSection(0, r.plan.Hold)
	return append(out, s), r.localHandoff(ctx, s)
}

// localHandoff measures the contestants that are given no server.
func (r *Runner) localHandoff(ctx context.Context, s *Section) error {
	folder, remove, err := temporary()
	if err != nil {
		return err
	}
	defer remove()
	for _, w := range r.plan.Waiters {
		setup := &Setup{TTL: r.plan.TTL, Folder: folder}
		if err := r.handoffCase(ctx, s, plural(w, "client"), w, setup, nil, r.serving("", 0, waits)); err != nil {
			return err
		}
	}
	return nil
}

func handoffSection(servers int, hold time.Duration) *Section {
	title := "Handing over on " + plural(servers, "server")
	if servers == 0 {
		title = "Handing over without a server"
	}
	return &Section{
		Title: title,
		Text: fmt.Sprintf("Clients, each with connections of its own, want one key, hold it for %v and want it again at once. A handoff is from just before the release to the return of another client's Lock. "+
			"A client that gets the lock again itself makes none, so that the handoffs are fewer than the locks where the order is not kept. Least and most say how many locks the clients got in one round.", hold),
		Key: "handoff p50", Axis: "clients",
		Plots: []Plot{
			{Title: "handoff, median", Metric: "handoff p50", Lines: true, Log: true},
			{Title: "handoffs per second", Metric: "handoffs", Lines: true},
		},
	}
}

func (r *Runner) handoffCase(ctx context.Context, s *Section, name string, clients int, setup *Setup, servers []*server.Server, contestants []Contestant) error {
	c := &testCase{
		name: name, x: float64(clients), clients: clients, rounds: min(r.plan.Rounds, 3),
		setup: setup, turn: r.handoffTurn(r.plan.Waiting, servers),
	}
	return r.compare(ctx, s, c, contestants)
}
