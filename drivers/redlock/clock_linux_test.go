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
func (c *cluster) highMark(i int, ahead time.Duration) bool {
	c.t.Helper()
	meta := fmt.Sprint(c.do(i, "GET", "redlock1:meta"))
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
				if on && !c.highMark(2, 30*time.Minute) { // every request ended before C could handle it
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

// Clients of the same nodes differ in TTLs, links or allowances, and a clock steps and stays. No two of them
// have a lock at the same time.
func TestClientsThatDiffer(t *testing.T) {
	t.Parallel()
	all := start(t, 3, server.WithClock())
	for name, open := range map[string]func(c *cluster, prefix string) (bidder *redlock.Backend, late func(began time.Time)){
		// All options have their defaults. The holder has a TTL of 1 s; the bidder has one of 30 s, and a slow
		// connection to the servers.
		"TTLs": func(c *cluster, prefix string) (*redlock.Backend, func(time.Time)) {
			slow := &cluster{t: c.t, servers: c.servers}
			for _, s := range c.servers {
				slow.proxies = append(slow.proxies, fault.NewProxy(c.t, s.Addr()))
			}
			drivertest.Must(c.t, slow.proxies[1].Refuse())
			bidder := slow.open("", "restart_guard=30s", prefix)
			return bidder, func(began time.Time) {
				// The bidder learns A's clock; otherwise A would refuse the next bid as late. It also
				// connects to all nodes.
				parallel(8, 16, func(int) {
					if l, err := bidder.Acquire(c.t.Context(), ask(fmt.Sprint("warm", owners.Add(1)), 30*time.Second)); err == nil {
						_ = l.Release(context.Background())
					}
				})
				time.Sleep(time.Until(began.Add(150 * time.Millisecond))) // by then the releases are done
				for _, p := range slow.proxies {
					p.Delay(fault.ToServer, 540*time.Millisecond, 0)
				}
				time.Sleep(time.Until(began.Add(250 * time.Millisecond))) // so the bid arrives when A's key ends early
			}
		},
		// The bidder accepts clocks that are 2 s apart.
		"allowances": func(c *cluster, prefix string) (*redlock.Backend, func(time.Time)) {
			return c.view("AC", "restart_guard=30s", prefix, "clock_allowance=2s"), func(time.Time) {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "TTLs" {
				long(t)
			}
			c := &cluster{t: t, servers: all.servers, proxies: all.proxies}
			for range *sceneRuns { // each with its own prefix, so that they are independent
				for i := range c.servers {
					c.setClock(i, 0)
				}
				prefix := fmt.Sprintf("prefix=%d/", owners.Add(1))
				c.bootstrap("restart_guard=30s", prefix)
				holder := c.view("AB", "restart_guard=30s", prefix)
				c.use(holder, "warm", time.Second)
				bidder, late := open(c, prefix)
				c.use(bidder, "warm", 30*time.Second)
				first := c.hold(holder, "file", time.Second)
				c.setClock(0, 600*time.Millisecond)
				late(first.Grant().Expires.Add(-time.Second))
				for time.Now().Before(first.Grant().Expires) {
					l, err := bidder.Acquire(t.Context(), ask("file", 30*time.Second))
					if err != nil {
						continue
					}
					if left := time.Until(first.Grant().Expires); left > 0 {
						t.Fatalf("two holders, for another %v", left.Round(time.Millisecond))
					}
					_ = l.Release(context.Background())
				}
			}
		})
	}
}
