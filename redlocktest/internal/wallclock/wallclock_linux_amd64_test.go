package wallclock

import (
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// TestAProcessHasAWallClockOfItsOwn: in a process of its own the wall clock is set, while many
// goroutines read it.
func TestAProcessHasAWallClockOfItsOwn(t *testing.T) {
	if os.Getenv("WALLCLOCK_TEST") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "WALLCLOCK_TEST=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	began := time.Now()
	var readers sync.WaitGroup
	defer readers.Wait()
	done := make(chan struct{})
	defer close(done)
	for range 4 {
		readers.Go(func() {
			for last := began; ; {
				select {
				case <-done:
					return
				default:
				}
				now := time.Now()
				if now.Sub(last) < 0 {
					t.Error("the monotonic clock went back")
				}
				last = now
			}
		})
	}
	for _, ahead := range []time.Duration{time.Hour, -3 * time.Hour, 2 * time.Second, 0} {
		if err := Set(ahead); err != nil {
			t.Fatal(err)
		}
		before := machine()
		now := time.Now().Round(0)
		after := machine()
		if now.Before(before.Add(ahead)) || now.After(after.Add(ahead)) {
			t.Errorf("set %v ahead, the clock is %v ahead", ahead, now.Sub(before))
		}
	}
	if passed := time.Since(began); passed < 0 || passed > time.Hour {
		t.Errorf("by the monotonic clock %v have passed", passed)
	}
}

// machine reads the machine's clock by a system call.
func machine() time.Time {
	var ts syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, 0, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Unix(ts.Unix())
}
