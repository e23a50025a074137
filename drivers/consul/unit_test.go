package consul

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/driver"
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

// A base that a stranger wrote, and that would overflow the token, is none.
func TestATokenOverflowsNothing(t *testing.T) {
	for base, want := range map[uint64]uint64{5: 12, driver.MaxFence - 7: driver.MaxFence, driver.MaxFence - 6: 9, math.MaxUint64: 9, math.MaxUint64 - 6: 9} {
		p := &api.KVPair{CreateIndex: 7, ModifyIndex: 9, Value: fmt.Appendf(nil, `{"owner":"o","base":%d}`, base)}
		if got := fence(p); got != want {
			t.Errorf("base %d: token %d, want %d", base, got, want)
		}
	}
}
