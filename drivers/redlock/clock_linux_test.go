package redlock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var sceneRuns = flag.Int("redlock.scenes", 1, "how often each scene of clients that differ is played")

// highMark reports whether a node has noted that its clock was this far ahead. A node notes that
// only in a request that is in time by its clock, so clients must have learned that clock before.
func (c *cluster) highMark(i int, prefix string, ahead time.Duration) bool {
	c.t.Helper()
	meta := fmt.Sprint(c.do(i, "GET", prefix+"redlock1:meta"))
	words := strings.Fields(meta)
	if len(words) < 5 {
		c.t.Fatalf("meta is %q", meta)
	}
	high, err := strconv.ParseInt(words[3], 10, 64)
	drivertest.Must(c.t, err)
	return time.Until(time.UnixMicro(high)) > ahead
}

// A clock jumps ahead and back during a lease. It agrees with the others again, but the keys
// that it ended are gone. If the node had a request in between, it has noted that its clock was
// ahead, and does not vote until every lease that it may have ended early has ended everywhere.
//
// A jump without a request in between remains a danger, because the node cannot notice it: the
// counter ended as well, so that not even the token tells which of two holders came first.
func TestAClockThatJumpsThereAndBack(t *testing.T) {
	long(t)
	t.Parallel()
	const ttl = 29 * time.Second
	for _, guard := range []string{"30s", "off"} {
		t.Run("the guard is "+guard, func(t *testing.T) {
			c := start(t, 5, server.WithClock())
			on, guard := guard != "off", "restart_guard="+guard
			if on {
				c.bootstrap(guard)
			}
			one, two := c.view("ABC", guard), c.view("CDE", guard)
			first := c.hold(one, "file", ttl)
			c.setClock(2, time.Hour)
			c.until(func() error {
				if l, err := two.Acquire(t.Context(), ask("file", ttl)); err == nil {
					t.Fatalf("two holders: %+v and %+v", first.Grant(), l.Grant())
				}
				if on && !c.highMark(2, "", 30*time.Minute) { // every request ended before C could handle it
					return errors.New("C was not asked while its clock was ahead")
				}
				return nil
			})
			c.setClock(2, 0)
			if !on {
				wantBoth(t, first, c.hold(two, "file", ttl))
				return
			}
			second, refused, err := c.untilRefused(two, 2, ttl)
			switch {
			case err == nil:
				t.Fatalf("two holders: %+v and %+v", first.Grant(), second.Grant())
			case refused == nil || !strings.Contains(refused.Error(), "clock"):
				t.Errorf("C was to refuse for its clock, and the error is: %v", err)
			case !time.Now().Add(refused.RetryAfter).After(first.Grant().Expires):
				t.Errorf("C votes again in %v, and client 1 has the lock for %v", refused.RetryAfter, time.Until(first.Grant().Expires))
			}
		})
	}
	t.Run("unseen", func(t *testing.T) {
		c := start(t, 5, server.WithClock())
		c.bootstrap("restart_guard=30s")
		one, two := c.view("ABC", "restart_guard=30s"), c.view("CDE", "restart_guard=30s")
		var first driver.Lease
		c.until(func() (err error) { // the token may be so far ahead of the clocks, as after an uneven round trip
			r := ask("file", ttl)
			r.FenceFloor = uint64(time.Now().Add(driver.FenceSlack - 100*time.Millisecond).UnixMicro())
			first, err = one.Acquire(t.Context(), r)
			return err
		})
		c.setClock(2, time.Hour)
		c.until(func() error { // no request of ours
			if len(c.keys("file")) > 2 || c.do(2, "GET", "redlock1:fence:{file}") != nil {
				return errors.New("the lock and its counter do not end")
			}
			return nil
		})
		c.setClock(2, 0)
		second := c.hold(two, "file", ttl)
		bothValid(t, first, second)
		t.Logf("the second token is larger by %v", time.Duration(second.Grant().Fence-first.Grant().Fence)*time.Microsecond)
	})
}

// Clients of the same nodes differ in TTLs, allowances, guards, links or sleeps. No two of them
// have a lock at the same time, tokens rise, and no client causes the others a longer outage
// than its own options would.
func TestClientsThatDiffer(t *testing.T) {
	t.Parallel()
	c := start(t, 3, server.WithClock())
	for name, play := range map[string]func(*scene){
		"TTLs, and a clock that steps and stays":          (*scene).ttls,
		"allowances":                                      (*scene).allowances,
		"an allowance of 20 s that came and went":         (*scene).passingAllowance,
		"a guard of ten minutes that came and went":       (*scene).passingGuard,
		"a client that slept before the nodes forgot all": (*scene).slept,
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(name, "allowance") {
				long(t)
			}
			for range *sceneRuns {
				s := &scene{cluster: &cluster{t: t, servers: c.servers, proxies: c.proxies}, prefix: fmt.Sprintf("%d/", owners.Add(1))}
				s.clocks(0)
				play(s)
				s.clocks(0)
			}
		})
	}
}

// scene is one run, with its own prefix, so that runs are independent.
type scene struct {
	*cluster
	prefix string
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
	b := s.view(sight, append(options, "restart_guard="+guard, "prefix="+s.prefix)...)
	s.warm(b, ttl)
	return b
}

// warm takes and releases a lock that nobody else uses.
func (s *scene) warm(b *redlock.Backend, ttl time.Duration) {
	s.t.Helper()
	s.use(b, fmt.Sprint("warm", owners.Add(1)), ttl)
}

// begin states that the servers are new, for this prefix.
func (s *scene) begin(guard string) {
	s.t.Helper()
	s.bootstrap("restart_guard="+guard, "prefix="+s.prefix)
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
			s.t.Fatalf("two holders, for another %v", left.Round(time.Millisecond))
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
	slow := &cluster{t: s.t, servers: s.servers}
	for _, srv := range s.servers {
		slow.proxies = append(slow.proxies, fault.NewProxy(s.t, srv.Addr()))
	}
	drivertest.Must(s.t, slow.proxies[1].Refuse())
	bidder := slow.open("", "restart_guard=30s", "prefix="+s.prefix)
	s.warm(bidder, 30*time.Second)
	first := s.hold(holder, "file", time.Second)
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
	for _, p := range slow.proxies {
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
	first := s.hold(holder, "file", time.Second)
	s.setClock(0, 600*time.Millisecond)
	s.rival(bidder, first, 30*time.Second, nil)
}

// In passingAllowance a client with an allowance of 20 s used the nodes once. Later a clock
// jumps half an hour ahead and back, and the node notices it.
func (s *scene) passingAllowance() {
	s.begin("30s")
	s.client("ABC", "30s", time.Second, "clock_allowance=20s")
	holder := s.client("AB", "30s", time.Second)
	bidder := s.client("AC", "30s", time.Second)
	first := s.hold(holder, "file", 20*time.Second)
	s.setClock(0, 30*time.Minute)
	for end := first.Grant().Expires; !s.highMark(0, s.prefix, 20*time.Minute); time.Sleep(poll) {
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

// In passingGuard a client with a guard of ten minutes used the nodes once, by mistake. Then
// all nodes are restarted.
func (s *scene) passingGuard() {
	s.begin("1s")
	right := s.client("ABC", "1s", time.Second)
	s.client("ABC", "10m", time.Second)
	for i, srv := range s.servers {
		s.do(i, "SAVE")
		drivertest.Must(s.t, crash(i, srv))
	}
	s.until(func() error {
		l, err := right.Acquire(s.t.Context(), ask("file", time.Second))
		var r *driver.RefusedError
		if err == nil {
			_ = l.Release(context.Background())
		} else if errors.As(err, &r) && r.RetryAfter > time.Minute {
			s.t.Fatalf("an outage of %v", r.RetryAfter.Round(time.Second))
		}
		return err
	})
}

// In slept a client's machine sleeps while the clocks of all nodes advance by an hour. The
// nodes are restarted empty before the client uses them again.
func (s *scene) slept() {
	s.begin("1s")
	sleeper := s.client("ABC", "1s", time.Second)
	s.clocks(time.Hour)
	awake := s.client("ABC", "1s", time.Second)
	last := s.hold(awake, "file", time.Second)
	s.release(last)
	for _, srv := range s.servers {
		drivertest.Must(s.t, srv.RestartEmpty())
	}
	s.warm(awake, time.Second) // the quarantine is over by then
	next := s.hold(sleeper, "file", time.Second)
	if a, b := last.Grant().Fence, next.Grant().Fence; b <= a {
		s.t.Errorf("token %d after %d: %v too small", b, a, time.Duration(a-b)*time.Microsecond)
	}
	s.release(next)
}
