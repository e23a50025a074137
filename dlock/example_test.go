package dlock_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	_ "github.com/redlock-go/redlock/drivers/all"
	"github.com/redlock-go/redlock/drivers/memory"
)

// open opens the backend that the environment names: the examples below run on Redis,
// on a quorum or on Postgres by nothing but DLOCK_URL. Without it, each has a memory of
// its own.
func open(opts ...dlock.Option) *dlock.Client {
	locks, err := dlock.OpenURL(cmp.Or(os.Getenv("DLOCK_URL"), "memory:"+rand.Text()), opts...)
	if err != nil {
		log.Fatal(err)
	}
	return locks
}

// The shortest lock.
func Example() {
	locks := open()
	defer locks.Close()

	lease, err := locks.Lock(context.Background(), "reports/2026-11")
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Unlock()

	fmt.Println("one at a time")
	// Output: one at a time
}

// Try once, and tell contention from an outage.
func Example_tryLock() {
	locks := open()
	defer locks.Close()
	ctx := context.Background()

	first, err := locks.Lock(ctx, "import")
	if err != nil {
		log.Fatal(err)
	}
	defer first.Unlock()

	_, err = locks.TryLock(ctx, "import")
	switch {
	case errors.Is(err, dlock.ErrHeld):
		fmt.Println("somebody else is at it")
	case errors.Is(err, dlock.ErrUnavailable):
		fmt.Println("nobody can tell:", err)
	}
	// Output: somebody else is at it
}

// Do runs a function under a lock. Its context ends if the lock is lost, and carries the
// fencing token.
func Example_do() {
	locks := open()
	defer locks.Close()

	save := func(ctx context.Context) error { // deep in a repository
		lease, ok := dlock.LeaseFor(ctx, "account/42")
		fmt.Println("under a lock:", ok, "with a token:", lease.Fence() > 0)
		return ctx.Err()
	}
	if err := dlock.Do(context.Background(), locks, "account/42", save); err != nil {
		log.Fatal(err)
	}
	// Output: under a lock: true with a token: true
}

// Several hosts start a job at the same time, by clocks that differ by a second. All hosts but
// the first skip it, and even a short job does not run again within half a minute.
func Example_cron() {
	locks := open()
	defer locks.Close()

	nightly := func() {
		lease, err := locks.TryLock(context.Background(), "nightly", dlock.WithMinHold(30*time.Second))
		if errors.Is(err, dlock.ErrHeld) {
			fmt.Println("skipped")
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		defer lease.Unlock()
		fmt.Println("ran")
	}
	nightly()
	nightly()
	// Output:
	// ran
	// skipped
}

// The configuration chooses the backend. WithRequire makes sure that a change keeps all needed
// guarantees.
func Example_swap() {
	for _, url := range []string{"memory:", "memory:another?ttl=30s&prefix=app:"} {
		locks, err := dlock.OpenURL(url, dlock.WithRequire(driver.FeatureFencing))
		if err != nil {
			log.Fatal(err)
		}
		err = dlock.Do(context.Background(), locks, "job", func(context.Context) error {
			fmt.Println("locked by", locks.Backend().Info().Name)
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
		_ = locks.Close()
	}
	// Output:
	// locked by memory
	// locked by memory
}

// tidy is a program's own code: it takes a dlock.Locker, so that its tests can give it
// locks in memory.
func tidy(ctx context.Context, locks dlock.Locker) string {
	lease, err := locks.TryLock(ctx, "tidy", dlock.WithTTL(3*time.Second))
	switch {
	case errors.Is(err, dlock.ErrHeld):
		return "busy"
	case err != nil:
		return "no locks today"
	}
	defer lease.Unlock()
	select {
	case <-time.After(time.Minute): // the work
		return "tidied"
	case <-lease.Done():
		return "stopped half-way"
	}
}

// Testing your own code: the lock is held, is lost, is unavailable.
func Example_testing() {
	backend := memory.New()
	loses := false
	locks, err := dlock.New(backend, dlock.WithLogger(nil), dlock.WithHooks(dlock.Hooks{
		Event: func(_ context.Context, e dlock.Event) {
			if loses && e.Op == "trylock" {
				backend.Expire(e.Key) // its holder loses it
			}
		},
	}))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	ctx := context.Background()

	release := backend.Hold("tidy")
	fmt.Println("held:  ", tidy(ctx, locks))
	release()

	backend.Fail(errors.New("connection refused"))
	fmt.Println("outage:", tidy(ctx, locks))
	backend.Fail(nil)

	loses = true
	fmt.Println("lost:  ", tidy(ctx, locks))
	// Output:
	// held:   busy
	// outage: no locks today
	// lost:   stopped half-way
}
