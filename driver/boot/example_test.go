package boot_test

import (
	"fmt"
	"time"

	"github.com/redlock-go/redlock/driver/boot"
)

// A machine that sleeps for an hour: Go's monotonic clock stands still, this clock goes on.
func Example() {
	var slept time.Duration
	clock := boot.New(boot.Source{Suspended: func() time.Duration { return slept }})
	before := clock.Fresh()
	slept = time.Hour
	fmt.Println(clock.Fresh().Sub(before) >= time.Hour)
	// Output: true
}
