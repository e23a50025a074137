package redlocktest_test

import (
	"context"
	"fmt"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
	"github.com/redlock-go/redlock/redlocktest"
)

// A driver tests itself with one call. Each Open opens another client of the same lock space,
// like another process.
func Example() {
	space := memory.New()
	harness := redlocktest.Harness{
		Open: func() (driver.Backend, error) { return space.Peer(), nil },
		TTL:  100 * time.Millisecond,
		Skip: map[string]string{"exclusion/reentrancy": "shown here only to show how"},
		Only: "exclusion", // without this line every case runs
	}
	// In a test: redlocktest.Run(t, harness)
	report, err := redlocktest.Examine(context.Background(), harness, nil)
	fmt.Println(len(report.Failures()), "failures,", err)
	// Output: 0 failures, <nil>
}
