package consul

import (
	"testing"
	"time"
)

// TTLs are rounded up to few classes, by a quarter at most.
func TestClassesOfTTLs(t *testing.T) {
	seen := map[int]bool{}
	for ttl := time.Second; ttl <= maxTTL; ttl += 500 * time.Millisecond {
		n := class(ttl)
		seen[n] = true
		if got := time.Duration(n) * time.Second; got < ttl || got > max(ttl*5/4, ttl+time.Second) {
			t.Fatalf("%v is in the class %v", ttl, got)
		}
	}
	if len(seen) > 64 {
		t.Errorf("there are %d classes", len(seen))
	}
}
