package memory_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/memory"
)

// clientOf returns a client of a double.
func clientOf(b *memory.Backend) *dlock.Client {
	locks, err := dlock.New(b, dlock.WithLogger(nil))
	if err != nil {
		log.Fatal(err)
	}
	return locks
}

// Another owner has the lock; a lease is lost, and knows it at once; the backend refuses connections.
func Example() {
	b := memory.New()
	locks := clientOf(b)
	defer locks.Close()
	ctx := context.Background()

	release := b.Hold("nightly")
	_, err := locks.TryLock(ctx, "nightly")
	fmt.Println("held:", errors.Is(err, dlock.ErrHeld))
	release()

	err = dlock.Do(ctx, locks, "nightly", func(ctx context.Context) error {
		b.Expire("nightly")
		<-ctx.Done() // the work stops
		return nil
	})
	fmt.Println("lost:", errors.Is(err, dlock.ErrLost))

	b.Fail(errors.New("connection refused"))
	_, err = locks.TryLock(ctx, "nightly")
	fmt.Println(err)
	fmt.Println("outage:", errors.Is(err, dlock.ErrUnavailable))
	// Output:
	// held: true
	// lost: true
	// dlock: trylock "nightly": connection refused
	// outage: true
}

// Locks are granted, and renewals fail: the lease ends before its deadline.
func ExampleBackend_SetOutage_renewals() {
	b := memory.New()
	locks := clientOf(b)
	defer locks.Close()

	b.SetOutage(memory.Outage{RenewalsOnly: true, Err: errors.New("connection reset")})
	lease, err := locks.TryLock(context.Background(), "nightly", dlock.WithTTL(50*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	<-lease.Done()
	fmt.Println(errors.Is(lease.Err(), dlock.ErrLost)) // its text: not renewed before its deadline: connection reset
	// Output: true
}
