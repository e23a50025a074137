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
		o := times(c.end, c.ttl, c.granted, c.maxHold)
		if !o.Times || o.Term != c.term || o.Kill != c.kill {
			t.Errorf("%s: SIGTERM at %v, SIGKILL at %v, want %v and %v", c.what, o.Term, o.Kill, c.term, c.kill)
		}
	}
}

// The lease may end before the supervisor, which was to say it first, has run.
func TestTheEndOfAMaximumHoldNamesItsFlag(t *testing.T) {
	h := &execution{job: &job{key: "k"}, lost: dlock.ErrMaxHold}
	if why := h.why(); !strings.Contains(why, "--max-hold") {
		t.Errorf("the reason is %q", why)
	}
}

func TestTheWardenLooksInTime(t *testing.T) {
	for _, c := range []struct {
		what        string
		w           supervisor
		least, most time.Duration
	}{
		{"without times it has no need to", supervisor{}, time.Minute, time.Hour},
		{"far off: often, as the machine may sleep", supervisor{term: time.Hour, kill: 2 * time.Hour}, clockInterval, clockInterval},
		{"near", supervisor{term: 50 * time.Millisecond, kill: time.Hour}, 0, 50 * time.Millisecond},
		{"after SIGTERM: the next is SIGKILL", supervisor{term: 1, termed: true, kill: time.Hour}, clockInterval, clockInterval},
		{"while killing", supervisor{killing: 1}, killInterval, killInterval},
	} {
		c.w.tree = &processTree{}
		now := machineNow()
		if c.w.term > 1 {
			c.w.term += now
		}
		if c.w.kill != 0 {
			c.w.kill += now
		}
		if d := c.w.next(); d < c.least || d > c.most {
			t.Errorf("%s: looks again after %v, want %v to %v", c.what, d, c.least, c.most)
		}
	}
}

func TestMessagesAreOneLine(t *testing.T) {
	if got := oneLine("dlock: a\nb\r\n\tc"); got != "a b c" {
		t.Errorf("got %q", got)
	}
}
