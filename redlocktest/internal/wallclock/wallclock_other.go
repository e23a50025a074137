//go:build !linux || !amd64

package wallclock

import (
	"errors"
	"time"
)

// Set is for Linux on amd64.
func Set(time.Duration) error { return errors.ErrUnsupported }
