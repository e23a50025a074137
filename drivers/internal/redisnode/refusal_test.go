package redisnode

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A refusal names the key that holds something else, and not the lock.
func TestARefusalNamesTheKeyWithTheWrongType(t *testing.T) {
	t.Parallel()
	s := server.Redis(t)
	guarded, _ := newGuarded(t, plain(t, s), nil)
	lone, _ := newGuarded(t, plain(t, s), func(c *Config) { c.Guard, c.Bootstrap = 0, false })
	for name, c := range map[string]struct {
		node *Node
		key  string // with the wrong type
	}{
		"a": {lone, "redlock1:mark"},
		"b": {guarded, "redlock1:meta"},
		"c": {lone, "redlock1:fence:{c}"},
		"d": {lone, "d"},
	} {
		do(t, s, "FLUSHALL")
		do(t, s, "LPUSH", c.key, "x")
		_, err := bid(c.node, name)
		r := wantRefused(t, err, `"`+c.key+`"`)
		if !strings.Contains(c.key, name) && strings.Contains(r.Error(), `"`+name+`"`) {
			t.Errorf("the lock is blamed for %s: %v", c.key, r)
		}
	}
	do(t, s, "FLUSHALL")
	do(t, s, "SET", "redlock1:mark", "x")
	_, err := bid(lone, "e")
	_ = wantRefused(t, err, `"redlock1:mark"`)

	do(t, s, "FLUSHALL")
	do(t, s, "LPUSH", "redlock1:mark", "x")
	_, err = lone.Acquire(t.Context(), &driver.Request{Key: "f", Owner: "o/1", TTL: 10 * time.Second, ExactFence: uint64(time.Now().UnixMicro()), Quorum: &quorum.Info{Terms: quorum.Terms{N: 3}}})
	_ = wantRefused(t, err, `"redlock1:mark" holds`) // asked to join
}

// A quarantine without an end says what it waits for, and when to ask again.
func TestAQuarantineWithoutAnEndSaysSo(t *testing.T) {
	t.Parallel()
	s := server.Redis(t)
	n, _ := newGuarded(t, plain(t, s), func(c *Config) { c.Guard, c.Bootstrap = 0, false })
	q := &quorum.Info{Terms: testTerms(3, time.Minute, time.Second)}
	if _, err := n.Bootstrap(t.Context(), &quorum.Bootstrap{Quorum: q, Statement: quorum.StateNew}); err != nil {
		t.Fatal(err)
	}
	changed := *q
	changed.Guard *= 2
	if _, err := n.Bootstrap(t.Context(), &quorum.Bootstrap{Quorum: &changed, Statement: quorum.StateChanged}); err != nil {
		t.Fatal(err)
	}
	_, err := n.Acquire(t.Context(), &driver.Request{Key: "k", Owner: "o", TTL: 10 * time.Second, Quorum: q})
	if r := wantRefused(t, err, "until the clocks"); r.RetryAfter <= 0 || r.RetryAfter > time.Second || strings.Contains(err.Error(), "another -") {
		t.Errorf("RetryAfter is %v: %v", r.RetryAfter, err)
	}

	meta := do(t, s, "GET", "redlock1:meta").(string)
	fields := strings.Fields(meta)
	fields[2] = "9007199254740991"
	do(t, s, "SET", "redlock1:meta", strings.Join(fields[:5], " ")+" new")
	found, err := n.Check(t.Context())
	if text := fmt.Sprintf("%+v", found); err != nil || !strings.Contains(text, "Code:quarantine ") || strings.Contains(text, "ends by itself") {
		t.Errorf("the doctor says %v, %v", text, err)
	}
}

// A memory of another layout is named in words.
func TestAnotherLayoutIsNamed(t *testing.T) {
	t.Parallel()
	s := server.Redis(t)
	n, _ := newGuarded(t, plain(t, s), nil)
	do(t, s, "SET", "redlock1:meta", "3 something else")
	_, err := bid(n, "k")
	if r := wantRefused(t, err, "has layout 3"); strings.Contains(r.Error(), "names.Layout") {
		t.Error(r)
	}
}

// A server without Lua is refused for good, with what to do.
func TestAServerWithoutLuaIsRefused(t *testing.T) {
	t.Parallel()
	s := server.Redis(t, server.WithArgs("--rename-command", "EVAL", "", "--rename-command", "EVALSHA", ""))
	for _, guard := range []time.Duration{0, time.Minute} {
		n, _ := newGuarded(t, plain(t, s), func(c *Config) { c.Guard, c.Bootstrap = guard, guard > 0 })
		_, err := bid(n, "k")
		if r := wantRefused(t, err, "runs no Lua scripts"); r.RetryAfter != 0 {
			t.Errorf("RetryAfter is %v", r.RetryAfter)
		}
	}
}
