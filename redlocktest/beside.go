package redlocktest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/redlocktest/paired"
)

// A Locker is a client of another way to lock: it waits for the lock of key, and returns a
// function that releases the lock.
type Locker func(ctx context.Context, key string) (release func(context.Context) error, err error)

// RunBeside measures the backend that h opens beside another way to lock, in the same servers
// or others, each part a sub-benchmark: Latency (one goroutine takes and releases a lock),
// Throughput (16 do so on keys of their own), and Handoff (two clients pass one key; a backend
// that does not wait is asked again each millisecond). One operation of the benchmark is a
// round, in which both do the same work, one after the other: -benchtime=50x runs 50 rounds.
// The benchmark reports the medians of both, in microseconds for a lock and its release, and
// the median ratio of the rounds; the log has the ratio's interval. open makes a client of the
// other way. An error ends the benchmark.
func RunBeside(b *testing.B, h Harness, open func(b *testing.B) Locker) {
	h, err := h.complete()
	if err != nil {
		b.Fatal(err)
	}
	for _, part := range []struct {
		name                       string
		clients, goroutines, times int
	}{
		{"Latency", 1, 1, 20},
		{"Throughput", 1, 16, 5},
		{"Handoff", 2, 1, 20},
	} {
		b.Run(part.name, func(b *testing.B) {
			m := &bench{B: b, h: &h}
			var ours, theirs []func(key string) bool
			for i := range part.clients {
				backend := m.open()
				if i == 0 {
					m.one = backend
				}
				ours = append(ours, func(key string) bool { return m.turn(backend, key) })
				locker := open(b)
				theirs = append(theirs, func(key string) bool { return m.lockTurn(locker, key) })
			}
			key := m.key()
			work := func(clients []func(string) bool) time.Duration {
				start := time.Now()
				var all sync.WaitGroup
				for _, do := range clients {
					for i := range part.goroutines {
						own := fmt.Sprint(key, "/", i)
						all.Go(func() {
							for n := 0; n < part.times && do(own); n++ {
							}
						})
					}
				}
				all.Wait()
				return time.Since(start)
			}
			work(ours)
			work(theirs) // connections and sessions are made
			m.compare(part.clients*part.goroutines*part.times, func() time.Duration { return work(ours) }, func() time.Duration { return work(theirs) })
		})
	}
}

// compare runs rounds. In each, both ways do this many operations, one way after the other; the
// order changes from round to round.
func (m *bench) compare(operations int, ours, theirs func() time.Duration) {
	var us, them, ratios []float64
	for m.Loop() {
		var a, b time.Duration
		if len(us)%2 == 0 {
			a, b = ours(), theirs()
		} else {
			b, a = theirs(), ours()
		}
		if m.Failed() {
			return
		}
		each := 1e6 / float64(operations) // microseconds
		us, them = append(us, a.Seconds()*each), append(them, b.Seconds()*each)
		ratios = append(ratios, a.Seconds()/b.Seconds())
	}
	ratio := paired.RatioOf(ratios)
	m.ReportMetric(paired.RatioOf(us).Median, "ours-µs")
	m.ReportMetric(paired.RatioOf(them).Median, "theirs-µs")
	m.ReportMetric(ratio.Median, "ours/theirs")
	m.Logf("ours takes %v times as long, in %d rounds", ratio, len(ratios))
}

// lockTurn is turn for the other way to lock.
func (m *bench) lockTurn(lock Locker, key string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), m.h.Timeout)
	defer cancel()
	release, err := lock(ctx, key)
	if err == nil {
		err = release(ctx)
	}
	if err != nil {
		m.Error(err)
	}
	return err == nil
}
