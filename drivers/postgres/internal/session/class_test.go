package session

import "testing"

func TestATTLIsRoundedUpToItsClass(t *testing.T) {
	t.Parallel()
	last := MinTTL
	for ttl := MinTTL; ttl <= MaxTTL; ttl += ttl / 7 {
		c := ClassOf(ttl)
		if c < ttl || c > 3*ttl || c < last {
			t.Errorf("ClassOf(%v) = %v", ttl, c)
		}
		last = c
	}
	if len(classes) > 20 || classes[0] != MinTTL || classes[len(classes)-1] != MaxTTL {
		t.Error("the classes do not cover the bounds")
	}
}
