//go:build !unix

package bench

import "time"

// processCPU returns zero: it is not known here.
func processCPU() time.Duration { return 0 }
