package redlock_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/redlocktest/server"
)

const contenderURL = "REDLOCK_TEST_CONTENDER"

// TestMain runs this process as a contender if the environment says so.
func TestMain(m *testing.M) {
	if url := os.Getenv(contenderURL); url != "" {
		if err := contend(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if url := os.Getenv(busyURL); url != "" {
		becomeBusy(url)
		os.Exit(0)
	}
	// Parallel tests mostly wait for leases to end. Only under the race detector do they need
	// many processors.
	flag.Parse()
	parallel := "6"
	if redlock.Race {
		parallel = "4"
	}
	_ = flag.Set("test.parallel", parallel) // that flag exists
	os.Exit(m.Run())
}

// contend takes and releases the lock until its standard input ends, and prints the times.
func contend(url string) error {
	c, err := dlock.OpenURL(url)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte() // the parent closes it
		cancel()
	}()
	for {
		l, err := c.Lock(ctx, "contended")
		if err != nil {
			break // the process has ended
		}
		got := time.Now()
		for time.Since(got) < time.Millisecond { // a timer could be a millisecond late
		}
		gave := time.Now()
		switch err := l.Unlock(); {
		case errors.Is(err, dlock.ErrLost): // the process stood still for a whole TTL
			continue
		case err != nil && !errors.Is(err, dlock.ErrUnavailable): // on a busy machine an answer may be late
			return err
		}
		fmt.Println(got.UnixNano(), gave.UnixNano())
	}
	if err := c.Close(); !errors.Is(err, dlock.ErrUnavailable) {
		return err
	}
	return nil
}

// hold is one period in which a process had the lock.
type hold struct {
	process   int
	got, gave int64
}

// Processes compete for one key. They exclude each other, hand the lock over, and all get it.
// The test prints figures, which mean little on a busy machine.
func TestProcessesHandTheLockOver(t *testing.T) {
	if testing.Short() {
		t.Skip("short: it starts many processes")
	}
	c := start(t, 5, "redis")
	crowds := []int{2, 8, 32, 128}
	switch {
	case !server.IsDeep():
		crowds = crowds[:2]
	case redlock.Race:
		crowds = crowds[:3] // each process needs 100 MB
	}
	for _, n := range crowds {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			holds := contest(t, c.url(false, calm), n, 3*time.Second)
			slices.SortFunc(holds, func(a, b hold) int { return int(a.got - b.got) })
			var handoffs []time.Duration
			count := make([]int, n)
			for i, h := range holds {
				count[h.process]++
				if i == 0 {
					continue
				}
				last := holds[i-1]
				gap := time.Duration(h.got - last.gave)
				if gap < 0 {
					t.Fatalf("process %d had the lock %v before process %d gave it", h.process, -gap, last.process)
				}
				if h.process != last.process {
					handoffs = append(handoffs, gap)
				}
			}
			if len(handoffs) == 0 {
				t.Fatalf("%d grants, and none went to another process", len(holds))
			}
			slices.Sort(handoffs)
			took := time.Duration(holds[len(holds)-1].gave - holds[0].got)
			t.Logf("%.0f grants per second, %d of %d to another process in %v (p99 %v); per process %d to %d", float64(len(holds))/took.Seconds(), len(handoffs), len(holds),
				handoffs[len(handoffs)/2], handoffs[len(handoffs)*99/100], slices.Min(count), slices.Max(count))
		})
	}
}

// contest runs n processes for a while, and longer until each has had the lock. It returns all
// holds.
func contest(t *testing.T, url string, n int, d time.Duration) []hold {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan []hold, n)
	served := make(chan struct{}, n)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range n {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), contenderURL+"="+url)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			<-ctx.Done()
			_ = in.Close()
		}()
		go func() {
			var holds []hold
			for s := bufio.NewScanner(out); s.Scan(); {
				h := hold{process: i}
				if _, err := fmt.Sscan(s.Text(), &h.got, &h.gave); err != nil {
					t.Error(err)
				}
				if holds = append(holds, h); len(holds) == 1 {
					served <- struct{}{}
				}
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			results <- holds
		}()
	}
	end, hang := time.After(d), time.After(4*time.Minute)
	for i := range n {
		select {
		case <-served:
		case <-hang:
			t.Fatalf("%d of %d processes had the lock in four minutes", i, n) // their context ends
		}
	}
	<-end
	cancel()
	var all []hold
	for range n {
		all = append(all, <-results...)
	}
	return all
}
