package gocronlock_test

import (
	"context"
	"fmt"
	"log"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/gocronlock"
	"github.com/redlock-go/redlock/drivers/memory"
)

func client(t *testing.T, b *memory.Backend) *dlock.Client {
	t.Helper()
	c, err := dlock.New(b, dlock.WithLogger(nil), dlock.WithTTL(3*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Three schedulers have one job. At each scheduled time the job runs once, though it is short
// and the hosts' clocks differ.
func TestAJobRunsOnOneHostEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		var runs atomic.Int64
		for i := range 3 {
			s, err := gocron.NewScheduler(gocron.WithDistributedLocker(gocronlock.NewLocker(client(t, b.Peer()), dlock.WithMinHold(20*time.Second))))
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.NewJob(gocron.DurationJob(time.Minute), gocron.NewTask(func() { runs.Add(1) }), gocron.WithName("nightly"))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(i) * time.Second) // the hosts' clocks differ
			s.Start()
			t.Cleanup(func() { _ = s.Shutdown() })
		}
		time.Sleep(5*time.Minute + 30*time.Second)
		synctest.Wait()
		if n := runs.Load(); n != 5 {
			t.Errorf("the job ran %d times at 5 times", n)
		}
	})
}

func Example() {
	locks, err := dlock.New(memory.New()) // yours is dlock.OpenURL(os.Getenv("DLOCK_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(gocronlock.NewLocker(locks, dlock.WithMinHold(100*time.Millisecond))))
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan struct{})
	_, err = s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
		gocron.NewTask(func() { close(done) }), gocron.WithName("nightly"))
	if err != nil {
		log.Fatal(err)
	}
	s.Start()
	<-done
	if err := s.Shutdown(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("ran once on all hosts")
	// Output: ran once on all hosts
}

// The code of the page on schedulers.
var _ = []any{perJob, onOneHost}

func perJob(locks *dlock.Client) (gocron.Scheduler, error) {
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(
		gocronlock.NewLocker(locks, dlock.WithMinHold(10*time.Second))))
	return s, err
}

func onOneHost(ctx context.Context, locks *dlock.Client, s gocron.Scheduler) error {
	err := dlock.Elect(ctx, locks, "scheduler", func(ctx context.Context) error {
		s.Start()
		<-ctx.Done()
		return s.StopJobs()
	})
	return err
}
