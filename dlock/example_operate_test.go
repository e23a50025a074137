package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
)

// One of all instances does the work that may be done once. If it loses the lease, it stops and
// becomes a candidate again.
func ExampleElect() {
	locks := open()
	defer locks.Close()

	terms := 0
	err := dlock.Elect(context.Background(), locks, "scheduler", func(ctx context.Context) error {
		terms++
		fmt.Println("leads")
		select {
		case <-ctx.Done(): // the lease was lost
			return ctx.Err()
		default:
			return nil // resigns
		}
	})
	fmt.Println("terms:", terms, "error:", err)
	// Output:
	// leads
	// terms: 1 error: <nil>
}

// Who holds a key, and since when?
func ExampleClient_Lookup() {
	locks := open()
	defer locks.Close()
	ctx := context.Background()

	lease, err := locks.Lock(ctx, "nightly")
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Unlock()

	state, err := locks.Lookup(ctx, "nightly")
	if err != nil {
		log.Fatal(err)
	}
	for _, h := range state.Holders {
		fmt.Println("the same token:", h.Fence == lease.Fence())
	}
	// Output: the same token: true
}

// What a backend has for operators: all keys under a prefix, findings, and taking a lock away from a
// holder that hangs, and from no later one.
func ExampleClient_Backend() {
	locks := open()
	defer locks.Close()
	ctx := context.Background()

	stuck, err := locks.Lock(ctx, "reports/nightly", dlock.WithTTL(time.Second))
	if err != nil {
		log.Fatal(err)
	}
	inspector, ok := locks.Backend().(driver.Inspector)
	admin, can := locks.Backend().(driver.Admin)
	if !ok || !can {
		return
	}
	var held *driver.State
	err = inspector.List(ctx, "reports/", func(s *driver.State) bool {
		held = s
		fmt.Println(s.Key)
		return true
	})
	if err != nil {
		log.Fatal(err)
	}
	found, err := inspector.Check(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(found), "findings")
	fmt.Println("broken:", admin.Break(ctx, "reports/nightly", held.Holders[0]))
	fmt.Println("again: ", errors.Is(admin.Break(ctx, "reports/nightly", held.Holders[0]), driver.ErrLost))

	<-stuck.Done() // at its next renewal, or at once
	fmt.Println("lost:  ", errors.Is(stuck.Err(), dlock.ErrLost))
	// Output:
	// reports/nightly
	// 0 findings
	// broken: <nil>
	// again:  true
	// lost:   true
}
