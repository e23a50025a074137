package redlock

import (
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// If nodes refuse for a while, RetryAfter is the time until so few still refuse that a majority
// is possible again.
func TestTheRefusalThatCountsIsTheOneThatGivesAMajority(t *testing.T) {
	const enough = 3 // this many refusals of five nodes exclude a majority
	for _, c := range []struct {
		after []time.Duration // zero: permanently
		want  time.Duration
	}{
		{[]time.Duration{50, 10, 40}, 10},
		{[]time.Duration{50, 10, 40, 20}, 20},
		{[]time.Duration{50, 10, 40, 20, 30}, 30},
		{[]time.Duration{0, 50, 10}, 10},
		{[]time.Duration{0, 50, 0, 10}, 50},
	} {
		forever, today := 0, []*driver.RefusedError(nil)
		for _, d := range c.after {
			if d == 0 {
				forever++
			} else {
				today = append(today, &driver.RefusedError{RetryAfter: d})
			}
		}
		if got := firstToEnd(today, forever, enough).RetryAfter; got != c.want {
			t.Errorf("of %v: %v, want %v", c.after, got, c.want)
		}
	}
}
