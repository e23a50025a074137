package redisnode_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
)

// steadily wraps a test that depends on a lock's reservation for the next waiter: some 30 ms,
// which may pass unused on a busy machine. The test fails only if it fails five times in a row.
func steadily(test func(*suite, testing.TB)) func(*suite, *testing.T) {
	return func(s *suite, t *testing.T) {
		for range 5 {
			try := &try{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				test(s, try)
			}()
			<-done
			if !try.end() {
				return
			}
			t.Logf("tried again: %s", try.said)
		}
		t.Error("it failed each time")
	}
}

// A try is a run of a test that may fail without failing the test. A failure during its
// clean-up fails the whole test.
type try struct {
	testing.TB
	mu     sync.Mutex
	failed bool
	ended  bool
	said   string
}

func (t *try) end() (failed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	return t.failed
}

func (t *try) fail(said string) {
	t.TB.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		t.TB.Error(said)
	}
	t.failed = true
	t.said += said
}

func (t *try) Error(args ...any) { t.TB.Helper(); t.fail(fmt.Sprintln(args...)) }
func (t *try) Errorf(format string, args ...any) {
	t.TB.Helper()
	t.fail(fmt.Sprintf(format+"\n", args...))
}

func (t *try) Fatal(args ...any) {
	t.TB.Helper()
	t.Error(args...)
	runtime.Goexit()
}

func (t *try) Fatalf(format string, args ...any) {
	t.TB.Helper()
	t.Errorf(format, args...)
	runtime.Goexit()
}
