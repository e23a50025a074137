package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"
)

// clockOf returns how far a server's wall clock is ahead of ours, and the uncertainty of this
// value.
func clockOf(t *testing.T, s *Server) (ahead, uncertain time.Duration) {
	t.Helper()
	sent := time.Now()
	reply, _ := do(t, s, "TIME").([]any)
	took := time.Since(sent)
	if len(reply) != 2 {
		t.Fatalf("TIME: %v", reply)
	}
	sec, err := strconv.ParseInt(fmt.Sprint(reply[0]), 10, 64)
	must(t, err)
	us, err := strconv.ParseInt(fmt.Sprint(reply[1]), 10, 64)
	must(t, err)
	return time.UnixMicro(sec*1e6 + us).Sub(sent.Add(took / 2)), took/2 + time.Millisecond
}

func wantClock(t *testing.T, s *Server, want time.Duration) {
	t.Helper()
	if ahead, uncertain := clockOf(t, s); (ahead - want).Abs() > uncertain {
		t.Errorf("the clock is ahead by %v ± %v, want %v", ahead, uncertain, want)
	}
}

var clockSteps = []time.Duration{time.Second, -time.Second, time.Hour, -time.Hour, 1234567 * time.Microsecond, 0}

// A step of the wall clock does not step the monotonic clock: the server's timers go on. One of
// them deletes expired keys that nobody reads.
func TestAStepOfTheClockStopsNoTimer(t *testing.T) {
	kinds(t, func(t *testing.T, kind Kind) {
		s := StartFor(t, kind, WithClock())
		for _, d := range clockSteps {
			must(t, s.SetClock(d))
			do(t, s, "SET", "k", "v", "PX", "50")
			ctx, cancel := context.WithTimeout(t.Context(), 10*doTimeout)
			must(t, poll(ctx, func(ctx context.Context) error {
				if n, err := s.do(ctx, "DBSIZE"); err != nil || n != int64(0) {
					return fmt.Errorf("%v ahead: %v keys are left: %w", d, n, err)
				}
				return nil
			}))
			cancel()
		}
	})
}

func TestAServersClockStaysOverRestarts(t *testing.T) {
	kinds(t, func(t *testing.T, kind Kind) {
		s := StartFor(t, kind, WithClock())
		must(t, s.SetClock(time.Hour))
		for _, restart := range []func() error{s.Restart, s.RestartEmpty, s.Kill, s.Start} {
			must(t, restart())
		}
		wantClock(t, s, time.Hour)
		must(t, s.Kill())
		must(t, s.SetClock(-time.Minute))
		must(t, s.Start())
		wantClock(t, s, -time.Minute)
		must(t, s.Pause())
		must(t, s.SetClock(0))
		must(t, s.Resume())
		wantClock(t, s, 0)
	})
}

func TestOnlyAServerWithAClockCanBeSet(t *testing.T) {
	t.Parallel()
	if err := Redis(t).SetClock(time.Second); err == nil {
		t.Error("a server without a clock of its own was set")
	}
}

// A missing C compiler is reported like a missing server program.
func TestAMissingCompilerIsAMissingProgram(t *testing.T) {
	t.Setenv("CC", "")
	t.Setenv("PATH", t.TempDir())
	var missing *MissingError
	if _, err := compiler(); !errors.As(err, &missing) {
		t.Errorf("got %v", err)
	}
	t.Setenv("CC", "/opt/bin/gcc -m64")
	if cc, err := compiler(); err != nil || len(cc) != 2 {
		t.Errorf("got %q, %v", cc, err)
	}
}
