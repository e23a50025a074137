package redlocktest_test

import (
	"strings"
	"testing"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	_ "github.com/redlock-go/redlock/drivers/all"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// through makes a harness for the servers in a URL, each behind a proxy, with processes that
// reach the servers directly.
func through(url string, servers ...*server.Server) redlocktest.Harness {
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	h := fault.HarnessOf(addrs, func(via []string) (driver.Backend, error) {
		var pairs []string
		for i := range addrs {
			pairs = append(pairs, addrs[i], via[i])
		}
		return dlock.OpenBackend(strings.NewReplacer(pairs...).Replace(url))
	})
	if len(servers) == 0 {
		h.Faults, h.LocalClock = nil, true
	}
	h.Process = func() (*redlocktest.Client, error) { return redlocktest.StartClient(url) }
	return h
}

// harnesses are harnesses for this module's drivers on real servers, with helper processes.
var harnesses = map[string]func(t *testing.T) redlocktest.Harness{
	"file": func(t *testing.T) redlocktest.Harness {
		return through("file://" + t.TempDir())
	},
	"redis": func(t *testing.T) redlocktest.Harness {
		s := server.Redis(t, server.WithAppendOnly("always"))
		h := through(s.URL(), s)
		h.Faults.Pause, h.Faults.Resume, h.Faults.Kill = s.Pause, s.Resume, s.Kill
		h.Faults.Restart = func(bool) error { return s.Start() }
		return h
	},
	"valkey": func(t *testing.T) redlocktest.Harness {
		s := server.Valkey(t, server.WithAppendOnly("always"))
		h := through(s.URL(), s)
		h.Faults.Pause, h.Faults.Resume = s.Pause, s.Resume
		return h
	},
	"redlock": func(t *testing.T) redlocktest.Harness {
		all := []*server.Server{server.Redis(t), server.Valkey(t), server.Redis(t)}
		url := "redlock:restart_guard=off"
		for _, s := range all {
			url += "," + s.URL()
		}
		return through(url, all...)
	},
	"postgres": func(t *testing.T) redlocktest.Harness {
		s := server.Postgres(t)
		return through(s.URL(), s)
	},
}

// TestStress runs the stress on the drivers, and kills and stops helper processes.
// REDLOCKTEST_STRESS=10m sets how long it takes for each driver.
func TestStress(t *testing.T) {
	t.Parallel()
	for name, start := range harnesses {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "file" {
				t.Skip("takes seconds")
			}
			t.Parallel() // it mostly waits
			redlocktest.Stress(t, start(t), redlocktest.StressOptions{Operations: 2500})
		})
	}
}

// TestProcesses runs the cases in which clients are processes.
func TestProcesses(t *testing.T) {
	for name, start := range harnesses {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "file" {
				t.Skip("takes seconds")
			}
			h := start(t)
			h.Only, h.IgnoreGoroutines = "process", []string{server.Goroutine}
			redlocktest.Run(t, h)
		})
	}
}
