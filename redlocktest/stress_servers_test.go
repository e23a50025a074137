package redlocktest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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
		return down(through(s.URL(), s), s)
	},
	"valkey": func(t *testing.T) redlocktest.Harness {
		s := server.Valkey(t, server.WithAppendOnly("always"))
		return down(through(s.URL(), s), s)
	},
	"redlock": func(t *testing.T) redlocktest.Harness {
		durable := server.WithAppendOnly("always")
		all := []*server.Server{server.Redis(t, durable), server.Valkey(t, durable), server.Redis(t, durable)}
		url := "redlock:restart_guard=off"
		for _, s := range all {
			url += "," + s.URL()
		}
		h, nodes := through(url, all...), server.Group{Nodes: all}
		h.Faults.Kill, h.Faults.Restart = nodes.KillMajority, nodes.StartAgain
		h.Faults.Pause, h.Faults.Resume = nodes.Pause, nodes.Resume
		return h
	},
	"guarded redlock": func(t *testing.T) redlocktest.Harness {
		var all []*server.Server
		url := "redlock:restart_guard=2s,bootstrap=true"
		for range 5 {
			all = append(all, server.Redis(t))
			url += "," + all[len(all)-1].URL()
		}
		h, nodes, forgets := through(url, all...), server.Group{Nodes: all}, 0
		h.Faults.Pause, h.Faults.Resume = nodes.Pause, nodes.Resume
		h.Faults.ForgetEvery, h.Faults.Forget = 3*time.Second, func() error {
			forgets++
			a, b := all[forgets%5], all[(forgets+1)%5]
			return errors.Join(a.Kill(), b.Kill(), a.Start(), b.Start())
		}
		return h
	},
	"postgres": func(t *testing.T) redlocktest.Harness {
		s := server.Postgres(t, server.WithDurable())
		h := down(through(s.URL()+"&application_name="+s.Addr(), s), s) // each backend's name is its proxy's address
		h.Faults.EndSession = func(b driver.Backend) error { return terminate(s.URL(), fmt.Sprint(b)) }
		return h
	},
}

// down adds the faults of a server that keeps its data.
func down(h redlocktest.Harness, s *server.Server) redlocktest.Harness {
	h.Faults.Pause, h.Faults.Resume, h.Faults.Kill = s.Pause, s.Resume, s.Kill
	h.Faults.Restart = func(bool) error { return s.Start() }
	return h
}

// terminate ends the sessions of a backend by the address in its name, as an administrator does.
func terminate(url, name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer c.Close(ctx) //nolint:errcheck // the test goes on
	_, err = c.Exec(ctx, `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
		WHERE application_name <> '' AND strpos($1, split_part(application_name, ' ', 1)) > 0`, name)
	return err
}

var long = flag.Duration("long", 0, "stress each driver for this `long`, instead of for some thousand calls")

// TestStress runs the stress on the drivers, and kills and stops helper processes.
// -long=10m sets how long it takes for each driver.
func TestStress(t *testing.T) {
	t.Parallel()
	for name, start := range harnesses {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "file" {
				t.Skip("takes seconds")
			}
			if name != "file" && name != "redis" { // each driver's module has its own
				server.Deep(t)
			}
			t.Parallel() // it mostly waits
			o := redlocktest.StressOptions{Operations: 4000}
			if *long > 0 {
				o = redlocktest.StressOptions{Duration: *long}
			}
			redlocktest.Stress(t, start(t), o)
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
			if name != "file" && name != "redis" { // each driver's module has its own
				server.Deep(t)
			}
			h := start(t)
			h.Only = "process"
			redlocktest.Run(t, h)
		})
	}
}
