package redisnode

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

func TestNamesBesideALockShareItsSlotAndPrefixAndDiffer(t *testing.T) {
	if got := Slot("123456789"); got != 12739 {
		t.Fatalf("Slot = %d, want 12739 (CRC16 XMODEM 0x31C3)", got)
	}
	seen := map[string]string{}
	for _, prefix := range []string{"", "app:", "{app}:"} {
		for _, key := range []string{"k", "{k}", "a{k}b", "{}k", "{", "}", "a}b", "a{b", "{}", "}{", "{a}{b}", "{{a}}", "\x00", "ключ"} {
			n := names{prefix}
			for _, name := range []string{n.counter(key), n.channel(key), n.waitQueue(key)} {
				if Slot(name) != Slot(n.lock(key)) {
					t.Errorf("%q is in another slot than %q", name, n.lock(key))
				}
				if name[:len(prefix)] != prefix || !reserved(name[len(prefix):]) {
					t.Errorf("%q does not begin with %q and the layout", name, prefix)
				}
				if other, ok := seen[name]; ok {
					t.Errorf("%q stands beside %q and %q", name, other, n.lock(key))
				}
				seen[name] = n.lock(key)
			}
			if got, ours := n.counted(n.counter(key)); !ours || got != key {
				t.Errorf("the counter %q is said to be of %q, and is of %q", n.counter(key), got, key)
			}
			if rest, ok := strings.CutPrefix(n.channel(key), n.own()); !ok || rest[0] != '{' && rest[0] != ':' {
				t.Errorf("%q may be a waiter's own channel, %q and letters", n.channel(key), n.own())
			}
		}
	}
}

func TestOwnersAreToldFromForeignValues(t *testing.T) {
	for value, want := range map[string]struct {
		owner string
		fence uint64
	}{
		"web-1/ab/2|1732161234567890": {"web-1/ab/2", 1732161234567890},
		"a|":                          {"a|", 0},
		"|12":                         {"|12", 0},
		"a|012":                       {"a|012", 0},
		"a|1|2":                       {"a|1|2", 0},
		"a|-1":                        {"a|-1", 0},
		"a|9007199254740992":          {"a|9007199254740992", 0},
		"":                            {"", 0},
		"c29tZSB2YWx1ZQ==":            {"c29tZSB2YWx1ZQ==", 0},
	} {
		owner, fence := parse(value)
		if owner != want.owner || fence != want.fence {
			t.Errorf("parse(%q) = %q, %d", value, owner, fence)
		}
	}
}

// Whatever the replies were, the true clock lies between the bounds; and a step of it
// is learnt from the first reply that shows it.
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

// A renewal that may yet take effect bounds what a later and longer one promises.
func TestRenewalInDoubtBoundsALongerOne(t *testing.T) {
	now := time.Now()
	l := &Lease{}
	l.inDoubt(now.Add(time.Second), now.Add(time.Hour))
	a := &answer{process: &process{}, sent: now, received: now}
	if g := l.extend(a, now, 10*time.Second); !g.Expires.Equal(now.Add(time.Second)) {
		t.Errorf("the lease promises %v", g.Expires.Sub(now))
	}
	a.received = now.Add(2 * time.Hour)
	if g := l.extend(a, now, 10*time.Second); g.Expires.Before(now.Add(9 * time.Second)) {
		t.Errorf("the lease promises %v when nothing is in doubt any more", g.Expires.Sub(now))
	}
}

// Every refusal of a server is a refusal, in words, and never contention; it is for
// now where it may pass, and for good where somebody has to act.
func TestRefusalsAreToldInWords(t *testing.T) {
	n := &Node{cfg: Config{Addr: "redis://h:1/0", Prefix: "app:"}, names: names{"app:"}}
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
		"ERR unknown command 'EVALSHA', with args beginning with:":                  {"lacks a command", false},
		"ERR the fencing counter of this lock holds something else":                 {"no number", false},
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
	// What no server says may come from something between, after the effect.
	for _, reply := range []ServerError{"ERR something new", "upstream failure", "ERR Connection refused"} {
		err := n.explain("k", reply)
		if errors.Is(err, driver.ErrRefused) || !n.unknown(reply) || !strings.Contains(err.Error(), string(reply)) {
			t.Errorf("%q: got %v, want an unknown outcome", reply, err)
		}
		if n.unknown(before(reply)) {
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
