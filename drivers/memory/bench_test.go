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

func BenchmarkAcquireReleaseParallel(b *testing.B) {
	s := New()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r := request("k")
		r.Key = r.Owner
		for pb.Next() {
			cycle(b, s, r)
		}
	})
}

// The handing over from one waiter to the next, two of them in turn.
func BenchmarkHandoff(b *testing.B) {
	s := New()
	b.SetParallelism(2)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r := request("k", waiting)
		for pb.Next() {
			cycle(b, s, r)
		}
	})
}

func BenchmarkRenew(b *testing.B) {
	l, err := New().Acquire(context.Background(), request("k"))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Renew(context.Background(), &driver.Renewal{TTL: ttl}); err != nil {
			b.Fatal(err)
		}
	}
}

func cycle(b *testing.B, s *Backend, r *driver.Request) {
	l, err := s.Acquire(context.Background(), r)
	if err != nil {
		b.Fatal(err)
	}
	if err := l.Release(context.Background()); err != nil {
		b.Fatal(err)
	}
}

func TestACycleAllocatesTheLeaseAlone(t *testing.T) {
	s := New()
	r := request("k")
	got := testing.AllocsPerRun(100, func() {
		l, err := s.Acquire(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
	})
	if got > 1 {
		t.Errorf("%v allocations per Acquire and Release, want 1", got)
	}
}
