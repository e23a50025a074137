package memory

import (
	"context"
	"testing"

	"github.com/redlock-go/redlock/driver"
)

// One allocation per Acquire and Release: the lease.
func BenchmarkAcquireRelease(b *testing.B) {
	s := New()
	r := request("k")
	b.ReportAllocs()
	for b.Loop() {
		cycle(b, s, r)
	}
}

func cycle(t testing.TB, s *Backend, r *driver.Request) {
	l, err := s.Acquire(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestACycleAllocatesTheLeaseAlone(t *testing.T) {
	s := New()
	r := request("k")
	got := testing.AllocsPerRun(100, func() { cycle(t, s, r) })
	if got > 1 {
		t.Errorf("%v allocations per Acquire and Release, want 1", got)
	}
}
