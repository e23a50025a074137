//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"time"

	"golang.org/x/sys/unix"
)

// machineNow reads a clock that all processes share. It goes on while the machine sleeps, if
// the system has such a clock.
func machineNow() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(clockID, &ts) // the clock is there
	return time.Duration(ts.Nano())
}
