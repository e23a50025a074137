//go:build unix

package server

import (
	"flag"
	"path/filepath"
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

func TestAGivenFolderStaysAndIsUsedAgain(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "redis")
	in := func(c *Config) { c.Dir = dir }
	s := Redis(t, in, WithAppendOnly("always"))
	do(t, s, "SET", "k", "v")
	must(t, s.Close())
	again := Redis(t, in, WithAppendOnly("always"))
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
