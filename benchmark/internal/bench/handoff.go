package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// handoff measures several clients that wait for one key.
func handoff(ctx context.Context, r *Runner) (cases []*testCase) {
	waits := func(c Contestant) bool { return c.Waits }
	for _, g := range grounds {
		s := &Section{
			Title: "Handing over on " + g.String(),
			Text: fmt.Sprintf("Clients with connections of their own, like processes, want one key, hold it for %s and want it again at once. "+
				"A handoff is from just before the release to the return of another client's Lock. "+
				"A client that gets the lock again itself makes no handoff: if waiters only poll, handoffs are few, and those few are short by luck. Passing on counts from a client's first release in a row, when another client could have got the lock. Least and most say how many locks the clients got in one round; "+
				"server commands (what the servers count, those inside scripts too) server CPU and the CPU of all clients are per handoff.", figures.Duration(r.plan.Hold)),
			Key: "handoff p50", Axis: "clients",
			Plots: []Plot{
				{Title: "handoff, median", Metric: "handoff p50", Lines: true},
				{Title: "passing on, median", Metric: "passing on p50", Lines: true},
				{Title: "handoffs per second", Metric: "handoffs", Lines: true, More: true},
			},
		}
		for _, n := range r.plan.Waiters {
			if c := r.on(ctx, s, g, waits, n, "client"); c != nil {
				c.clients, c.heavy, c.rounds, c.least, c.measurement = n, 1.5, 24, r.plan.Waiting, r.handoffMeasurement
				cases = append(cases, c)
			}
		}
	}
	return cases
}

// settling is the first part of a slice, which does not count: the clients are still starting
// to wait.
const settling = 0.2

// A Relay describes how a lock went from client to client.
type Relay struct {
	Handoffs []time.Duration // from one client's last release to another's grant
	Errs     []error         // a nil for each client that did not fail

	got      []int           // number of locks, by client
	passings []time.Duration // from that client's first release in a row to the grant
	overlaps int
	all      int           // number of handoffs, including those before the counted time
	counted  time.Duration // the slice without its first part
}

// Handoffs lets clients lock one key, hold it for a while and release it, over and over, until
// the slice is over.
func Handoffs(ctx context.Context, clients []Locker, key string, hold time.Duration, begin time.Time, slice time.Duration) *Relay {
	holds, errs := make([][]Hold, len(clients)), make([]error, len(clients))
	end := begin.Add(slice)
	var running sync.WaitGroup
	for i, l := range clients {
		running.Go(func() { holds[i], errs[i] = want(ctx, l, key, hold, end) })
	}
	running.Wait()
	from := begin.Add(time.Duration(settling * float64(slice)))
	w := runRelay(holds, from)
	w.Errs, w.counted = errs, end.Sub(from)
	return w
}

// handoffMeasurement measures handoffs. Each measurement has its own key, so that nothing that an
// earlier one left behind matters.
func (r *Runner) handoffMeasurement(ctx context.Context, e *entry, slice time.Duration) *measurement {
	t := &measurement{}
	m := startMeter(e.servers)
	w := Handoffs(ctx, e.lockers, "handoff/"+newOwner(), r.plan.Hold, m.at, slice)
	all := 0
	for i, err := range w.Errs {
		if all += w.got[i]; err != nil {
			t.fail(err)
		}
	}
	t.add("locks", figures.PerSecond, float64(all)/w.counted.Seconds())
	t.add("handoffs", figures.PerSecond, float64(len(w.Handoffs))/w.counted.Seconds())
	t.series = []series{{"handoff", w.Handoffs}, {"passing on", w.passings}}
	t.add("least of a client", figures.Count, float64(slices.Min(w.got)))
	t.add("most of a client", figures.Count, float64(slices.Max(w.got)))
	m.stop(t, w.all)
	if w.overlaps > 0 {
		t.failed += w.overlaps
		t.err = fmt.Errorf("two clients held the lock at once, %d times", w.overlaps)
	}
	return t
}

// A Hold is one period in which a client had the lock, in nanoseconds since 1970.
type Hold struct{ From, To int64 }

// gaveUp is how long before its deadline a client may give up, because its next attempt would
// come too late.
const gaveUp = 100 * time.Millisecond

// want lets a client lock, hold and release one key, over and over, until the given time. A
// wait that this time ends is not a failure.
func want(ctx context.Context, l Locker, key string, length time.Duration, until time.Time) (holds []Hold, err error) {
	work, stop := context.WithDeadline(ctx, until)
	defer stop()
	for work.Err() == nil {
		h, err := l.Lock(work, key, true)
		if err != nil {
			if work.Err() != nil || errors.Is(err, context.DeadlineExceeded) && time.Until(until) < gaveUp {
				return holds, nil
			}
			return holds, err
		}
		from := time.Now()
		time.Sleep(length)
		holds = append(holds, Hold{from.UnixNano(), time.Now().UnixNano()})
		if err := h.Unlock(); err != nil {
			return holds, err
		}
	}
	return holds, nil
}

// runRelay sorts the holds of all clients by time. Only holds that began after from count.
func runRelay(clients [][]Hold, from time.Time) *Relay {
	type turn struct {
		Hold
		client int
	}
	var turns []turn
	for i, holds := range clients {
		for _, h := range holds {
			turns = append(turns, turn{h, i})
		}
	}
	slices.SortFunc(turns, func(a, b turn) int { return int(a.From - b.From) })
	r := &Relay{got: make([]int, len(clients))}
	end := int64(0)   // the latest end of all holds so far
	first := int64(0) // the first release, in a row, of the client that had the lock last
	for i, l := range turns {
		if l.From < end {
			r.overlaps++
		}
		end = max(end, l.To)
		other := i > 0 && turns[i-1].client != l.client
		if other {
			r.all++
		}
		if l.From >= from.UnixNano() {
			r.got[l.client]++
			if other {
				r.Handoffs = append(r.Handoffs, time.Duration(l.From-turns[i-1].To))
				r.passings = append(r.passings, time.Duration(l.From-first))
			}
		}
		if other || i == 0 {
			first = l.To
		}
	}
	return r
}
