package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/redlock-go/redlock/dlock"
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

// Others follow who leads, to forward requests to it for example.
func ExampleClient_Observe() {
	locks := open(dlock.WithOwnerLabel("host-a"))
	defer locks.Close()
	ctx := context.Background()

	leader, err := locks.Lock(ctx, "scheduler")
	if err != nil {
		log.Fatal(err)
	}
	for holder, err := range locks.Observe(ctx, "scheduler") {
		switch {
		case err != nil:
			log.Print(err) // an outage; the iteration goes on
		case holder.Owner == "":
			fmt.Println("nobody leads")
			return
		default:
			label, _, _ := strings.Cut(holder.Owner, "/")
			fmt.Println(label, "leads")
			_ = leader.Unlock()
		}
	}
	// Output:
	// host-a leads
	// nobody leads
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

// All keys that are held under a prefix.
func ExampleClient_List() {
	locks := open()
	defer locks.Close()
	ctx := context.Background()

	lease, err := locks.Lock(ctx, "reports/nightly")
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Unlock()

	for state, err := range locks.List(ctx, "reports/") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(state.Key)
	}
	// Output: reports/nightly
}

// Is the deployment sound? A program can refuse to start where a guarantee does not hold.
func ExampleClient_Check() {
	locks := open()
	defer locks.Close()

	found, err := locks.Check(context.Background())
	if errors.Is(err, errors.ErrUnsupported) {
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range found {
		fmt.Println(d.Severity, d.Summary)
	}
	// Output: note locks exclude only within this process
}

// A holder hangs. An operator looks at it, and takes that lock away and no later one.
func ExampleClient_Break() {
	locks := open()
	defer locks.Close()
	ctx := context.Background()

	stuck, err := locks.Lock(ctx, "nightly", dlock.WithTTL(time.Second))
	if err != nil {
		log.Fatal(err)
	}
	state, err := locks.Lookup(ctx, "nightly")
	if err != nil {
		log.Fatal(err)
	}
	token := state.Holders[0].Fence
	fmt.Println("broken:", locks.Break(ctx, "nightly", dlock.Holder{Fence: token}))
	fmt.Println("again: ", errors.Is(locks.Break(ctx, "nightly", dlock.Holder{Fence: token}), dlock.ErrLost))

	<-stuck.Done() // at its next renewal
	fmt.Println("lost:  ", errors.Is(stuck.Err(), dlock.ErrLost))
	// Output:
	// broken: <nil>
	// again:  true
	// lost:   true
}
