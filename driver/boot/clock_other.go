//go:build !linux && !darwin

package boot

import "time"

// suspended returns 0: Go's monotonic clock goes on while Windows sleeps, and the other systems
// do not say how long they slept.
func suspended() time.Duration { return 0 }
