package boot

import (
	"syscall"
	"time"
	"unsafe"
)

// suspended returns how long the machine has slept since it booted: CLOCK_BOOTTIME counts
// sleeps, CLOCK_MONOTONIC does not.
func suspended() time.Duration {
	const monotonic, boottime = 1, 7
	for range 4 {
		before, ok1 := readClock(monotonic)
		boot, ok2 := readClock(boottime)
		after, ok3 := readClock(monotonic)
		if !ok1 || !ok2 || !ok3 {
			return 0
		}
		if after-before < time.Millisecond {
			return max(boot-after, 0)
		}
	}
	return 0 // interrupted four times within a microsecond: try again at the next call
}

func readClock(id uintptr) (time.Duration, bool) {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano()), errno == 0
}
