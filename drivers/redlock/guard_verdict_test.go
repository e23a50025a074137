package redlock

import (
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Of nodes that refuse for a while, the one after which so few are left that they rule no
// majority out says when to ask again.
func TestTheRefusalThatCountsIsTheOneThatGivesAMajority(t *testing.T) {
	const enough = 3 // of five
	for _, c := range []struct {
		after []time.Duration // zero: for ever
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
		if got := soonest(today, forever, enough).RetryAfter; got != c.want {
			t.Errorf("of %v: %v, want %v", c.after, got, c.want)
		}
	}
}
