package redisnode

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"

	"github.com/redlock-go/redlock/driver"
)

// Whatever the replies, the true clock lies between the bounds, and the first reply that shows
// a step of the clock corrects them.
func TestClockBoundsHoldTheServersClock(t *testing.T) {
	var c clock
	base := time.Now()
	server := func(at time.Time) int64 { return 5_000_000 + at.Sub(base).Microseconds() }
	for _, r := range []struct{ to, back time.Duration }{{5, 1}, {1, 9}, {2, 2}, {40, 1}} {
		sent := base.Add(r.to * time.Second)
		at := sent.Add(r.to * time.Millisecond)
		c.observe(server(at), sent, at.Add(r.back*time.Millisecond))
		if us := c.at(sent); us < server(sent) {
			t.Errorf("the server's clock says %d, and is bounded by %d", server(sent), us)
		}
		if p := c.passed(server(sent)); server(p) <= server(sent) {
			t.Errorf("passed is too early by %v", sent.Sub(p))
		}
	}
	if slack := c.at(base) - server(base); slack > 1000 {
		t.Errorf("the bound is %d µs off, with a reply that took 1 ms to get there", slack)
	}
	for _, step := range []int64{3_600_000_000, -7_200_000_000} {
		sent := base.Add(time.Minute)
		c.observe(server(sent)+step, sent, sent.Add(time.Millisecond))
		if off := c.at(sent) - server(sent) - step; off < 0 || off > 1000 {
			t.Errorf("after a step of %d µs the bound is %d µs off", step, off)
		}
	}
}

// A clean-up waits for the end of a request by the server's clock, which may run slower than the
// local one and may not have been seen for a while.
func TestPassedHoldsForAClockThatRunsSlower(t *testing.T) {
	var c clock
	base := time.Now()
	server := func(at time.Time) int64 { return int64(float64(at.Sub(base).Microseconds()) * 0.92) }
	c.observe(server(base), base, base.Add(time.Millisecond))
	for _, idle := range []time.Duration{0, time.Second, time.Minute} {
		end := c.at(base.Add(idle + time.Second))
		if p := c.passed(end); server(p) < end {
			t.Errorf("after %v, passed is too early by %v", idle, time.Duration(end-server(p))*time.Microsecond)
		}
	}
}

// A lock that ends within the millisecond has a RetryAfter: a refusal without it says that the
// end is unknown, and a waiter would wait for a signal that never comes.
func TestALockThatHasLessThanAMillisecondLeftEnds(t *testing.T) {
	for pttl, want := range map[int64]time.Duration{-2: 0, -1: 0, 0: time.Millisecond, 1: time.Millisecond, 250: 250 * time.Millisecond} {
		c := &Call{Reply: []any{int64(0), "redlock1:next|1|a.1.30", pttl, int64(0)}, process: &process{}}
		if got := held(c).RetryAfter; got != want {
			t.Errorf("PTTL %d gives RetryAfter %v, want %v", pttl, got, want)
		}
	}
}

// A renewal that may still take effect bounds the promise of a later and longer one.
func TestRenewalInDoubtBoundsALongerOne(t *testing.T) {
	now := time.Now()
	l := &Lease{}
	l.noteInDoubt(now.Add(time.Second), now.Add(time.Hour))
	c := &Call{process: &process{}, sent: now, received: now}
	l.extend(c, now, 10*time.Second)
	if g := l.Grant(); !g.Expires.Equal(now.Add(time.Second)) {
		t.Errorf("the lease promises %v", g.Expires.Sub(now))
	}
	c.received = now.Add(2 * time.Hour)
	l.extend(c, now, 10*time.Second)
	if g := l.Grant(); g.Expires.Before(now.Add(9 * time.Second)) {
		t.Errorf("the lease promises %v when nothing is in doubt any more", g.Expires.Sub(now))
	}
}

// Every refusal of a server is a readable refusal, never contention. It is temporary if it may
// pass by itself, and permanent if an operator must act.
func TestRefusalsAreToldInWords(t *testing.T) {
	n := &Node{cfg: Config{Addr: "redis://h:1/0", Prefix: "app:"}, names: names.Prefix("app:"), guard: &guard{cfg: &Config{Addr: "redis://h:1/0"}}}
	for reply, want := range map[string]struct {
		says  string
		timed bool
	}{
		"WRONGPASS invalid username-password pair or user is disabled.":             {"user and password", false},
		"NOAUTH Authentication required.":                                           {"asks for a password", false},
		"ERR AUTH <password> called without any password configured":                {"user and password", false},
		"NOPERM this user has no permissions to run the 'evalsha' command":          {"command evalsha", false},
		"NOPERM this user has no permissions to access one of the keys used":        {`"app:k"`, false},
		"NOPERM this user has no permissions to access one of the channels used":    {"channel", false},
		"READONLY You can't write against a read only replica.":                     {"replica", true},
		"OOM command not allowed when used memory > 'maxmemory'.":                   {"out of memory", true},
		"LOADING Redis is loading the dataset in memory":                            {"loading", true},
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is 'no'.": {"lost its primary", true},
		"BUSY Redis is busy running a script.":                                      {"slow script", true},
		"MISCONF Redis is configured to save RDB snapshots":                         {"cannot save", true},
		"NOREPLICAS Not enough good replicas to write.":                             {"too few replicas", true},
		"CLUSTERDOWN The cluster is down":                                           {"Cluster is down", true},
		"TRYAGAIN Multiple keys request during rehashing of slot":                   {"moving", true},
		"MOVED 3999 127.0.0.1:6381":                                                 {"topology=cluster", false},
		"ASK 3999 127.0.0.1:6381":                                                   {"topology=cluster", false},
		"CROSSSLOT Keys in request don't hash to the same slot":                     {"slots", false},
		"WRONGTYPE Operation against a key holding the wrong kind of value":         {"no lock", false},
		"NOPROTO unsupported protocol version":                                      {"too old", false},
		"ERR max number of clients reached":                                         {"maxclients", true},
		"ERR DB index is out of range":                                              {"no such database", false},
		"ERR unknown command 'EVALSHA', with args beginning with:":                  {"no Lua scripts", false},
		"ERR Could not find scripting engine 'lua'":                                 {"no Lua scripts", false},
		"ERR unknown command 'FOO', with args beginning with:":                      {"lacks the command FOO", false},
		"ERR the fencing counter of this lock holds something else":                 {"no number", false},
		"GUARD release 6.2.7":                                                       {"keeps scripts over a restart", false},
	} {
		err := n.explain("k", fmt.Errorf("wrapped: %w", ServerError(reply)))
		var refused *driver.RefusedError
		if !errors.As(err, &refused) || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLost) {
			t.Errorf("%q: %v is no refusal", reply, err)
			continue
		}
		if (refused.RetryAfter > 0) != want.timed || !strings.Contains(err.Error(), want.says) || !strings.Contains(err.Error(), "redis://h:1/0") {
			t.Errorf("%q: got %v, want it to say %q, and timed %v", reply, err, want.says, want.timed)
		}
	}
	// A reply that no server gives may come from a proxy, after the call took effect.
	for _, reply := range []ServerError{"ERR something new", "upstream failure", "ERR Connection refused"} {
		err := n.explain("k", reply)
		if errors.Is(err, driver.ErrRefused) || !n.unknown(reply) || !strings.Contains(err.Error(), string(reply)) {
			t.Errorf("%q: got %v, want an unknown outcome", reply, err)
		}
		if n.unknown(NotSent(reply)) {
			t.Errorf("%q before anything was sent is taken for an unknown outcome", reply)
		}
	}
	n.cfg.Failover, n.cfg.Cluster = true, true
	for _, reply := range []ServerError{"READONLY x", "MOVED x"} {
		var refused *driver.RefusedError
		if err := n.explain("k", reply); !errors.As(err, &refused) || refused.RetryAfter == 0 {
			t.Errorf("%q while a failover is possible: %v", reply, err)
		}
	}
}

// The counter before a vote is known once all of its calls are answered: an earlier one may still be granted.
func TestTheCounterBeforeAVoteIsUnknownWhileACallIsUnderWay(t *testing.T) {
	n := &Node{}
	grant := []any{int64(1), int64(8), int64(9), "5"}
	ends := func(c *Call) *Call { c.done = answered; return c }
	for name, c := range map[string]struct {
		other *Call
		known bool
	}{
		"it was refused":     {ends(&Call{Reply: []any{int64(0), "x/1|7", int64(9), int64(9)}}), true},
		"it got no answer":   {ends(&Call{Err: io.EOF}), false},
		"it is under way":    {&Call{done: make(chan struct{})}, false},
		"its library writes": {&Call{Reply: grant, done: make(chan struct{})}, false},
	} {
		for _, calls := range [][]*Call{{ends(&Call{Reply: grant}), c.other}, {c.other, ends(&Call{Reply: grant})}} {
			fence, before := n.votes(calls)
			if known := before == 5 && fence == 8; known != c.known || !known && before != unknown {
				t.Errorf("%s: the counter before %d was %d", name, fence, before)
			}
		}
	}
}
