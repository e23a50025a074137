package quorum_test

import (
	"fmt"
	"time"

	"github.com/redlock-go/redlock/driver/quorum"
)

// Two clients of the same nodes have other terms: what is safe together with both.
func ExampleTerms_Merge() {
	mine := quorum.Terms{N: 5, Guard: 30 * time.Second, Quarantine: 31 * time.Second}
	theirs := quorum.Terms{N: 5, Guard: time.Minute, Quarantine: 62 * time.Second}
	both := mine.Merge(theirs)
	fmt.Println(both.Guard, both.Quarantine)
	// Output: 30s 1m2s
}
