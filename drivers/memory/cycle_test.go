package memory

import (
	"context"
	"testing"
)

func TestACycleAllocatesTheLeaseAlone(t *testing.T) {
	s := New()
	r := request("k")
	if got := testing.AllocsPerRun(100, func() {
		l, err := s.Acquire(context.Background(), r)
		must(t, err)
		must(t, l.Release(context.Background()))
	}); got > 1 {
		t.Errorf("%v allocations per Acquire and Release, want 1", got)
	}
}
