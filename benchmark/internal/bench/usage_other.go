//go:build !unix

package bench

import "time"

// processCPU returns zero: this system does not tell.
func processCPU() time.Duration { return 0 }
