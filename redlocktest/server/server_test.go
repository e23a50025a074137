//go:build unix

package server

import (
	"errors"
	"flag"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Tests wait for servers more than they compute, so running more than two at once is faster on
// two processors.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // that flag exists
	m.Run()
}

// kinds runs a test in parallel for each kind of server that speaks RESP, outside of the deep depth only
// for one.
func kinds(t *testing.T, test func(t *testing.T, kind Kind)) {
	t.Parallel()
	both := []Kind{KindValkey, KindRedis}
	if !IsDeep() {
		both = both[:1]
	}
	for _, kind := range both {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

func do(t *testing.T, s *Server, args ...string) any {
	t.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		t.Fatalf("%v: %v", args[0], err)
	}
	return reply
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRestartKeepsTheDataAndTheAddress(t *testing.T) {
	kinds(t, func(t *testing.T, kind Kind) {
		s := StartFor(t, kind)
		addr, pid := s.Addr(), s.Pid()
		do(t, s, "SET", "k", "v")
		must(t, s.Restart())
		if s.Addr() != addr || s.Pid() == pid {
			t.Errorf("address %s, pid %d; before %s, %d", s.Addr(), s.Pid(), addr, pid)
		}
		if v := do(t, s, "GET", "k"); v != "v" {
			t.Errorf("k = %v", v)
		}
	})
}

func TestRestartEmptyForgets(t *testing.T) {
	kinds(t, func(t *testing.T, kind Kind) {
		s := StartFor(t, kind, WithAppendOnly("always"))
		do(t, s, "SET", "k", "v")
		must(t, s.RestartEmpty())
		if v := do(t, s, "GET", "k"); v != nil {
			t.Errorf("k = %v", v)
		}
	})
}

func TestKillLosesWhatWasNotWritten(t *testing.T) {
	kinds(t, func(t *testing.T, kind Kind) {
		for _, durable := range []bool{false, true} {
			var opts []Option
			if durable {
				opts = append(opts, WithAppendOnly("always"))
			}
			s := StartFor(t, kind, opts...)
			do(t, s, "SET", "k", "v")
			must(t, s.Kill())
			if _, err := net.Dial("tcp", s.Addr()); err == nil {
				t.Error("a killed server accepts connections")
			}
			must(t, s.Start())
			if v := do(t, s, "GET", "k"); (v == "v") != durable {
				t.Errorf("durable %v: k = %v", durable, v)
			}
		}
	})
}

func TestStopEndsTheProcessAndCloseRemovesTheFolder(t *testing.T) {
	for _, kind := range []Kind{KindRedis, KindValkey, KindPostgres} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := StartFor(t, kind)
			must(t, s.Stop())
			if pid := s.Pid(); pid != 0 {
				t.Errorf("pid %d after Stop", pid)
			}
			must(t, s.Start())
			pid := s.Pid()
			must(t, s.Close())
			must(t, s.Close())
			if alive(pid) {
				t.Error("the process outlives Close")
			}
			if _, err := os.Stat(s.Dir()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the folder outlives Close: %v", err)
			}
			if err := s.Start(); err == nil || !strings.Contains(err.Error(), "closed") {
				t.Errorf("Start after Close: %v", err)
			}
		})
	}
}

func TestAGivenFolderStaysAndIsUsedAgain(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "redis")
	s := Redis(t, WithDir(dir), WithAppendOnly("always"))
	do(t, s, "SET", "k", "v")
	must(t, s.Close())
	again := Redis(t, WithDir(dir), WithAppendOnly("always"))
	if v := do(t, again, "GET", "k"); v != "v" {
		t.Errorf("k = %v", v)
	}
}

func TestARunningServerCostsOneGoroutineThatIsNamed(t *testing.T) {
	before := goleak.IgnoreCurrent()
	Redis(t)
	// goleak waits for less than half a second, in which a goroutine may not end on a busy
	// machine.
	for end := time.Now().Add(doTimeout); ; {
		err := goleak.Find(before, goleak.IgnoreAnyFunction(Goroutine))
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	s := Redis(t)
	if err := goleak.Find(before); err == nil {
		t.Error("no goroutine was found at all")
	}
	must(t, s.Close())
}
