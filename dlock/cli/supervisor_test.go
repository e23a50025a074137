package cli

import (
	"strings"
	"sync/atomic"
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

func TestTheSupervisorLooksInTime(t *testing.T) {
	for _, c := range []struct {
		what        string
		s           supervisor
		term, kill  time.Duration // from now; zero: never
		least, most time.Duration
	}{
		{"without deadlines, as the machine may sleep", supervisor{}, 0, 0, clockInterval, clockInterval},
		{"far off", supervisor{}, time.Hour, 2 * time.Hour, clockInterval, clockInterval},
		{"near", supervisor{}, 50 * time.Millisecond, time.Hour, 0, 50 * time.Millisecond},
		{"after SIGTERM: the next is SIGKILL", supervisor{now: report{Termed: true}}, -time.Second, time.Hour, clockInterval, clockInterval},
		{"while killing", supervisor{killing: 1}, 0, 0, killInterval, killInterval},
	} {
		c.s.tree, c.s.times = &processTree{}, new(deadlines)
		for at, d := range map[*atomic.Int64]time.Duration{&c.s.times.term: c.term, &c.s.times.kill: c.kill} {
			if d != 0 {
				at.Store(int64(machineNow() + d))
			}
		}
		if d := c.s.next(); d < c.least || d > c.most {
			t.Errorf("%s: looks again after %v, want %v to %v", c.what, d, c.least, c.most)
		}
	}
}

func TestMessagesAreOneLine(t *testing.T) {
	if got := oneLine("dlock: a\nb\r\n\tc"); got != "a b c" {
		t.Errorf("got %q", got)
	}
}
