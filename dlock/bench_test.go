package dlock_test

import (
	"testing"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/memory"
)

// What dlock itself costs: a lock and an unlock on memory.
func BenchmarkLockUnlock(b *testing.B) {
	c, err := dlock.New(memory.New())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		l, err := c.Lock(b.Context(), "k")
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Unlock(); err != nil {
			b.Fatal(err)
		}
	}
}
