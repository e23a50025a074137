package nodetest

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/redlocktest/server"
)

var (
	measured   = flag.Bool("measure", false, "run TestMeasures: what a node costs and how long it takes, in figures")
	measureFor = flag.Duration("measure.for", 10*time.Minute, "how long the measure of keys used once takes")
)

// measures print figures. They fail on counts and on bytes, and judge no time.
var measures = []test{
	{"KeysUsedOnce", (*suite).keysUsedOnce},
}

// RunMeasures runs the measures, one after the other, on both servers, if the flag -measure is
// given.
func RunMeasures(t *testing.T, d Driver) {
	if !*measured {
		t.Skip("it takes minutes: give -measure to run it")
	}
	eachKind(t, d, func(t *testing.T, s *suite) {
		for _, test := range measures {
			t.Run(test.name, func(t *testing.T) { test.run(s, t) })
		}
	})
}

// keysUsedOnce locks 1,000 keys a second, each of them once: the memory of a node that evicts
// nothing grows until the first counters end, and no further.
func (s *suite) keysUsedOnce(t *testing.T) {
	const (
		workers = 16
		perTick = 20 // keys in 20 ms
		ttl     = 10 * time.Second
		life    = 2*time.Minute + ttl // of a counter
	)
	srv := server.StartFor(t, s.kind, server.WithMaxMemory("64mb", "noeviction"))
	b := s.open(t, s.url(srv.Addr(), ""))
	s.warm(t, b)
	memory := func() (bytes int64) {
		info, err := srv.Do("INFO", "memory")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(fmt.Sprint(info), "used_memory:")
		bytes, err = strconv.ParseInt(strings.SplitN(rest, "\r\n", 2)[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	keys := make(chan int, 1000)
	var failed atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range keys {
				l, err := b.Acquire(context.Background(), s.ask(fmt.Sprintf("reports/tenant-%d", i), ttl))
				if err == nil {
					err = l.Release(context.Background())
				}
				if err != nil && failed.Add(1) < 5 {
					t.Error(err)
				}
			}
		})
	}
	start, sample := time.Now(), time.Now()
	used := 0
	var grown, most int64
	for tick := time.NewTicker(20 * time.Millisecond); time.Since(start) < *measureFor; <-tick.C {
		for want := int(time.Since(start)/(20*time.Millisecond)) * perTick; used < want; used++ {
			keys <- used
		}
		if time.Since(sample) < 10*time.Second {
			continue
		}
		sample = time.Now()
		bytes := memory()
		if at := time.Since(start); at < life+30*time.Second {
			grown = max(grown, bytes)
		} else {
			most = max(most, bytes)
		}
		n, _ := srv.Do("DBSIZE")
		t.Logf("after %v: %d keys used, %v stored, %.1f MB", time.Since(start).Round(time.Second), used, n, float64(bytes)/1e6)
	}
	close(keys)
	wg.Wait()
	t.Logf("%d keys used once in %v: %.1f MB at most until the first counters have ended, %.1f MB at most afterwards, %d calls failed",
		used, time.Since(start).Round(time.Second), float64(grown)/1e6, float64(most)/1e6, failed.Load())
	if most > 50e6 || float64(most) > 1.2*float64(grown) {
		t.Errorf("the memory of a node is not flat below 50 MB: %d bytes, and then %d", grown, most)
	}
}
