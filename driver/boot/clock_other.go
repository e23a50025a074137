//go:build !linux && !darwin

package boot

import "time"

// suspended: Go's monotonic clock goes on while Windows sleeps, and the other systems
// do not tell.
func suspended() time.Duration { return 0 }
