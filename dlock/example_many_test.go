package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/redlock-go/redlock/dlock"
)

// At most two of all instances call a service that cannot serve more.
func ExampleWithSlots() {
	locks := open()
	defer locks.Close()
	ctx := context.Background()

	for range 2 {
		lease, err := locks.TryLock(ctx, "exports", dlock.WithSlots(2))
		if err != nil {
			log.Fatal(err)
		}
		defer lease.Unlock()
	}
	_, err := locks.TryLock(ctx, "exports", dlock.WithSlots(2))
	fmt.Println("a third:", errors.Is(err, dlock.ErrHeld))
	// Output: a third: true
}

// A transfer needs both accounts, in whatever order the caller names them.
func ExampleDoAll() {
	locks := open()
	defer locks.Close()

	err := dlock.DoAll(context.Background(), locks, []string{"account/7", "account/3"}, func(ctx context.Context) error {
		from, _ := dlock.LeaseFor(ctx, "account/7")
		to, _ := dlock.LeaseFor(ctx, "account/3")
		fmt.Println(from.Err(), to.Err())
		return nil
	})
	fmt.Println(err)
	// Output:
	// <nil> <nil>
	// <nil>
}
