package bench

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// hold is how long a lock is held while others wait for it.
const hold = time.Millisecond

// settling is the first part of a slice, which does not count: the clients are still starting
// to wait.
const settling = 0.2

// A Relay describes how a lock went from client to client.
type Relay struct {
	Handoffs []float64 // seconds from one client's last release to another's grant
	Errs     []error   // a nil for each client that did not fail

	got      []float64 // number of locks, by client
	passings []float64 // seconds from that client's first release in a row to the grant
	overlaps int
	all      float64       // number of handoffs, including those before the counted time
	counted  time.Duration // the slice without its first part
}

// Handoffs lets clients lock one key, hold it for a while and release it, over and over, until
// the slice is over.
func Handoffs(ctx context.Context, clients []*Client, key string, slice time.Duration) *Relay {
	begin := time.Now()
	end := begin.Add(slice)
	holds, errs := wantAll(ctx, clients, key, end, hold)
	from := begin.Add(time.Duration(settling * float64(slice)))
	w := runRelay(holds, from)
	w.Errs, w.counted = errs, end.Sub(from)
	return w
}

// handingOver measures handoffs. Each round has its own key, so that nothing that an earlier one
// left behind matters.
func handingOver(ctx context.Context, r *Row, slice time.Duration) {
	m := startMeter(r)
	w := Handoffs(ctx, r.clients, "handoff/"+newOwner(), slice)
	all := 0.0
	for i, err := range w.Errs {
		if all += w.got[i]; err != nil {
			r.fail(1, err)
		}
	}
	r.add("handoff", figures.Seconds, w.Handoffs...)
	r.add(passingOn, figures.Seconds, w.passings...)
	r.add("locks", figures.PerSecond, all/w.counted.Seconds())
	r.add("handoffs", figures.PerSecond, float64(len(w.Handoffs))/w.counted.Seconds())
	r.add("least of a client", figures.Count, slices.Min(w.got))
	r.add("most of a client", figures.Count, slices.Max(w.got))
	if w.all > 0 {
		m.stop(w.all)
	}
	if w.overlaps > 0 {
		r.fail(w.overlaps, errOverlap)
	}
}

// passingOn is the metric of the time until another client has a lock that was released.
const passingOn = "passing on"

// A Hold is one period in which a client had the lock, in nanoseconds since 1970.
type Hold struct{ From, To int64 }

// gaveUp is how long before its deadline a client may give up, because its next attempt would
// come too late.
const gaveUp = 100 * time.Millisecond

// wantAll lets clients want one key at the same time.
func wantAll(ctx context.Context, clients []*Client, key string, until time.Time, hold time.Duration) ([][]Hold, []error) {
	holds, errs := make([][]Hold, len(clients)), make([]error, len(clients))
	var running sync.WaitGroup
	for i, c := range clients {
		running.Go(func() { holds[i], errs[i] = want(ctx, c, key, until, hold) })
	}
	running.Wait()
	return holds, errs
}

// sharing measures goroutines of one client that want one key.
func sharing(goroutines int) func(context.Context, *Row, time.Duration) {
	return func(ctx context.Context, r *Row, slice time.Duration) {
		m := startMeter(r)
		holds, errs := wantAll(ctx, slices.Repeat(r.clients[:1], goroutines), "hot/"+newOwner(), m.at.Add(slice), 0)
		took, n := time.Since(m.at).Seconds(), 0.0
		for i, err := range errs {
			if n += float64(len(holds[i])); err != nil {
				r.fail(1, err)
			}
		}
		if n > 0 {
			r.add(aLock, figures.Seconds, took/n)
			r.add("locks", figures.PerSecond, n/took)
			m.stop(n)
		}
		if w := runRelay(holds, m.at); w.overlaps > 0 {
			r.fail(w.overlaps, errOverlap)
		}
	}
}

var errOverlap = errors.New("two clients held the lock at once")

// want lets a client lock, hold and release one key, over and over, until the given time. A
// wait that this time ends is not a failure.
func want(ctx context.Context, c *Client, key string, until time.Time, hold time.Duration) (holds []Hold, err error) {
	work, stop := context.WithDeadline(ctx, until)
	defer stop()
	for work.Err() == nil {
		unlock, err := c.Lock(work, key, true)
		if err != nil {
			if work.Err() != nil || errors.Is(err, context.DeadlineExceeded) && time.Until(until) < gaveUp {
				return holds, nil
			}
			return holds, err
		}
		from := time.Now()
		time.Sleep(hold)
		holds = append(holds, Hold{from.UnixNano(), time.Now().UnixNano()})
		if err := unlock(); err != nil {
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
	r := &Relay{got: make([]float64, len(clients))}
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
				r.Handoffs = append(r.Handoffs, float64(l.From-turns[i-1].To)/1e9)
				r.passings = append(r.passings, float64(l.From-first)/1e9)
			}
		}
		if other || i == 0 {
			first = l.To
		}
	}
	return r
}
