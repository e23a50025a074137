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

// Locks are granted, and renewals fail: the lease ends before its deadline.
func ExampleBackend_SetOutage_renewals() {
	b := memory.New()
	locks, err := dlock.New(b, dlock.WithLogger(nil))
	if err != nil {
		log.Fatal(err)
	}
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
