package redlock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var sceneRuns = flag.Int("redlock.scenes", 1, "how often each scene of clients that differ is played, on each kind of server")

// Clients of the same nodes differ in TTLs, allowances, guards, links or sleeps. No two of them
// have a lock at the same time, tokens rise, and no client causes the others a longer outage
// than its own options would.
func TestClientsThatDiffer(t *testing.T) {
	t.Parallel()
	for _, kind := range []server.Kind{server.KindRedis, server.KindValkey} {
		runs := *sceneRuns
		if testing.Short() {
			if runs = 1; kind != server.KindRedis { // both run the same scripts
				continue
			}
		}
		c := &cluster{t: t, schemes: []string{"redis"}}
		for range 3 {
			s := server.StartFor(t, kind, server.WithClock())
			c.servers = append(c.servers, s)
			c.proxies = append(c.proxies, fault.NewProxy(t, s.Addr()))
		}
		for name, play := range map[string]func(*scene){
			"TTLs, and a clock that steps and stays":          (*scene).ttls,
			"allowances":                                      (*scene).allowances,
			"an allowance of an hour that came and went":      (*scene).passingAllowance,
			"a guard of ten minutes that came and went":       (*scene).passingGuard,
			"a client that slept before the nodes forgot all": (*scene).slept,
		} {
			t.Run(fmt.Sprintf("%s/%s", kind, name), func(t *testing.T) {
				if !strings.Contains(name, "allowance") {
					long(t)
				}
				bad := 0
				for range runs {
					s := &scene{cluster: &cluster{t: t, servers: c.servers, proxies: c.proxies, schemes: c.schemes}, prefix: fmt.Sprintf("prefix=%d/", owners.Add(1))}
					s.clocks(0)
					play(s)
					if s.broken != "" {
						bad++
						t.Log(s.broken)
					}
					s.clocks(0)
				}
				if bad > 0 {
					t.Errorf("%d of %d runs are broken", bad, runs)
				}
			})
		}
	}
}

// scene is one run, with its own prefix, so that runs are independent.
type scene struct {
	*cluster
	prefix string
	broken string // the rules that the run broke
}

func (s *scene) clocks(ahead time.Duration) {
	s.t.Helper()
	for i := range s.servers {
		s.setClock(i, ahead)
	}
}

// client opens a client that reaches only some of the nodes, and lets it use them once.
func (s *scene) client(sight, guard string, ttl time.Duration, options ...string) *redlock.Backend {
	s.t.Helper()
	b := s.guarded(sight, guard, append(options, s.prefix)...)
	s.use(b, ttl)
	return b
}

// use takes and releases a lock that nobody else uses.
func (s *scene) use(b *redlock.Backend, ttl time.Duration) {
	s.t.Helper()
	s.release(s.whenFree(b, fmt.Sprint("warm", owners.Add(1)), ttl))
}

// begin states that the servers are new, for this prefix.
func (s *scene) begin(guard string) {
	s.t.Helper()
	s.bootstrap(guard, s.prefix)
}

// rival bids for the key of first until first has ended, or until stop returns true.
func (s *scene) rival(b *redlock.Backend, first driver.Lease, ttl time.Duration, stop func(error) bool) {
	s.t.Helper()
	for time.Now().Before(first.Grant().Expires) {
		l, err := b.Acquire(s.t.Context(), ask("file", ttl))
		left := time.Until(first.Grant().Expires)
		if err == nil {
			_ = l.Release(context.Background())
		}
		switch {
		case err == nil && left > 0:
			s.broken = fmt.Sprintf("two holders, for another %v", left.Round(time.Millisecond))
			return
		case err != nil && stop != nil && stop(err):
			return
		}
	}
}

// In ttls all options have their defaults. The holder has a TTL of 1 s; the bidder has one of
// 30 s, and a slow connection to the servers.
func (s *scene) ttls() {
	s.begin("30s")
	holder := s.client("AB", "30s", time.Second)
	slow := make([]*fault.Proxy, len(s.servers))
	var items []string
	for i, srv := range s.servers {
		slow[i] = fault.NewProxy(s.t, srv.Addr())
		items = append(items, "redis://"+slow[i].Addr()+"?call_timeout=5s")
	}
	if err := slow[1].Refuse(); err != nil {
		s.t.Fatal(err)
	}
	bidder := s.openURL("redlock:" + strings.Join(append(items, "restart_guard=30s", s.prefix), ","))
	s.use(bidder, 30*time.Second)
	first := s.whenFree(holder, "file", time.Second)
	began := first.Grant().Expires.Add(-time.Second)
	s.setClock(0, 600*time.Millisecond)
	// The bidder learns A's clock; otherwise A would refuse the next bid as late. It also
	// connects to all nodes.
	parallel(8, 16, func(int) {
		if l, err := bidder.Acquire(s.t.Context(), ask(fmt.Sprint("warm", owners.Add(1)), 30*time.Second)); err == nil {
			_ = l.Release(context.Background())
		}
	})
	time.Sleep(time.Until(began.Add(150 * time.Millisecond))) // by then the releases are done
	for _, p := range slow {
		p.Delay(fault.ToServer, 540*time.Millisecond, 0)
	}
	time.Sleep(time.Until(began.Add(250 * time.Millisecond))) // so the bid arrives when A's key ends early
	s.rival(bidder, first, 30*time.Second, nil)
}

// In allowances the bidder accepts clocks that are 2 s apart.
func (s *scene) allowances() {
	s.begin("30s")
	holder := s.client("AB", "30s", time.Second)
	bidder := s.client("AC", "30s", 30*time.Second, "clock_allowance=2s")
	first := s.whenFree(holder, "file", time.Second)
	s.setClock(0, 600*time.Millisecond)
	s.rival(bidder, first, 30*time.Second, nil)
}

// In passingAllowance a client with an allowance of an hour used the nodes once. Later a clock
// jumps half an hour ahead and back, and the node notices it.
func (s *scene) passingAllowance() {
	s.begin("30s")
	if wild, err := s.tryGuarded("ABC", "30s", "clock_allowance=1h", s.prefix); err == nil {
		s.use(wild, time.Second)
	}
	holder := s.client("AB", "30s", time.Second)
	bidder := s.client("AC", "30s", time.Second)
	first := s.whenFree(holder, "file", 20*time.Second)
	s.setClock(0, 30*time.Minute)
	for end := first.Grant().Expires; !s.highMark(0, 20*time.Minute); time.Sleep(poll) {
		l, err := bidder.Acquire(s.t.Context(), ask("file", time.Second))
		switch left := time.Until(end); {
		case left <= 0:
			s.t.Fatal("A was not asked while its clock was ahead and the first lease lasted")
		case err == nil:
			s.t.Fatalf("two holders, for another %v: %+v", left, l.Grant())
		}
	}
	s.setClock(0, 0)
	s.rival(bidder, first, time.Second, func(err error) bool {
		return strings.Contains(err.Error(), "clock was set back")
	})
}

// highMark reports whether node i has noted that its clock was this far ahead.
func (s *scene) highMark(i int, ahead time.Duration) bool {
	s.t.Helper()
	reply, err := s.servers[i].Do("GET", strings.TrimPrefix(s.prefix, "prefix=")+"redlock1:meta")
	if err != nil {
		s.t.Fatal(err)
	}
	return time.Until(highOf(s.t, fmt.Sprint(reply))) > ahead
}

// In passingGuard a client with a guard of ten minutes used the nodes once, by mistake. Then
// all nodes are restarted.
func (s *scene) passingGuard() {
	s.begin("1s")
	right := s.client("ABC", "1s", time.Second)
	wild, err := s.tryGuarded("ABC", "10m", s.prefix)
	if err != nil {
		s.t.Fatal(err)
	}
	s.use(wild, time.Second)
	for _, srv := range s.servers {
		if _, err := srv.Do("SAVE"); err != nil {
			s.t.Fatal(err)
		}
		if err := errors.Join(srv.Kill(), srv.Start()); err != nil {
			s.t.Fatal(err)
		}
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(poll) {
		l, err := right.Acquire(s.t.Context(), ask("file", time.Second))
		var r *driver.RefusedError
		if err == nil {
			_ = l.Release(context.Background())
			return
		}
		if errors.As(err, &r) && r.RetryAfter > time.Minute {
			s.broken = fmt.Sprintf("an outage of %v", r.RetryAfter.Round(time.Second))
			return
		}
		if time.Now().After(end) {
			s.t.Fatal(err)
		}
	}
}

// In slept a client's machine sleeps while the clocks of all nodes advance by an hour. The
// nodes are restarted empty before the client uses them again.
func (s *scene) slept() {
	s.begin("1s")
	sleeper := s.client("ABC", "1s", time.Second)
	s.clocks(time.Hour)
	awake := s.client("ABC", "1s", time.Second)
	last := s.whenFree(awake, "file", time.Second)
	s.release(last)
	for _, srv := range s.servers {
		if err := srv.RestartEmpty(); err != nil {
			s.t.Fatal(err)
		}
	}
	s.use(awake, time.Second) // the quarantine is over by then
	next := s.whenFree(sleeper, "file", time.Second)
	if a, b := last.Grant().Fence, next.Grant().Fence; b <= a {
		s.broken = fmt.Sprintf("token %d after %d: %v too small", b, a, time.Duration(a-b)*time.Microsecond)
	}
	_ = next.Release(context.Background())
}
