package boot

import (
	"encoding/binary"
	"syscall"
	"time"
	_ "unsafe" // for go:linkname
)

// suspended returns how long the machine has slept since it booted, plus or minus a constant:
// the calendar time since boot, which the kernel corrects when somebody sets the clock, minus
// the time in which the machine was awake.
func suspended() time.Duration {
	boot, ok := bootTime()
	var now syscall.Timeval
	if !ok || syscall.Gettimeofday(&now) != nil {
		return 0
	}
	return time.Duration(now.Nano()-boot) - time.Duration(nanotime())
}

// bootTime reads kern.boottime, a struct timeval, in nanoseconds.
func bootTime() (int64, bool) {
	s, err := syscall.Sysctl("kern.boottime")
	if err != nil || len(s) < 12 {
		return 0, false
	}
	b := make([]byte, 16) // Sysctl cuts a trailing zero byte off
	copy(b, s)
	sec, usec := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])
	return int64(sec)*1e9 + int64(usec)*1e3, true
}

// nanotime reads the clock behind time.Now's monotonic reading. It stops while the machine
// sleeps, and testing/synctest does not make it virtual.
//
//go:linkname nanotime runtime.nanotime
func nanotime() int64
