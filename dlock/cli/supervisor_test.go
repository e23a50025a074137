package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
)

func TestTheCommandIsStoppedInTimeForItsLease(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for _, c := range []struct {
		what                       string
		end, ttl, granted, maxHold time.Duration
		term, kill                 time.Duration
	}{
		{"a session has no end", 0, 0, 50 * s, 0, 0, 0},
		{"a second and 100 ms at least", 104 * s, 4 * s, 100 * s, 0, 103 * s, 103*s + 800*ms},
		{"the least TTL, 100 ms", 102 * s, 2 * s, 100 * s, 0, 101 * s, 101*s + 900*ms},
		{"a quarter and a twentieth", 140 * s, 40 * s, 100 * s, 0, 130 * s, 138 * s},
		{"a maximum hold of a session", 0, 0, 100 * s, 10 * s, 109 * s, 110 * s},
		{"a short maximum hold", 0, 0, 100 * s, 2 * s, 101*s + 500*ms, 102 * s},
		{"a maximum hold that ends first", 140 * s, 40 * s, 100 * s, 5 * s, 104 * s, 105 * s},
		{"a lease that ends first", 140 * s, 40 * s, 100 * s, 60 * s, 130 * s, 138 * s},
	} {
		if term, kill := times(c.end, c.ttl, c.granted, c.maxHold); term != c.term || kill != c.kill {
			t.Errorf("%s: SIGTERM at %v, SIGKILL at %v, want %v and %v", c.what, term, kill, c.term, c.kill)
		}
	}
}

// The lease may end before the supervisor, which should report it first, has run.
func TestTheEndOfAMaximumHoldNamesItsFlag(t *testing.T) {
	h := &execution{job: &job{key: "k"}, lost: dlock.ErrMaxHold}
	if why := h.why(); !strings.Contains(why, "--max-hold") {
		t.Errorf("the reason is %q", why)
	}
}
