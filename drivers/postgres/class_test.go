package postgres

import "testing"

func TestATTLIsRoundedUpToItsClass(t *testing.T) {
	t.Parallel()
	last := minTTL
	for ttl := minTTL; ttl <= maxTTL; ttl += ttl / 7 {
		c := classOf(ttl)
		if c < ttl || c > 3*ttl || c < last {
			t.Errorf("classOf(%v) = %v", ttl, c)
		}
		last = c
	}
	if len(classes) > 20 || classes[0] != minTTL || classes[len(classes)-1] != maxTTL {
		t.Error("the classes do not cover the bounds")
	}
}
