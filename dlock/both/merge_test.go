package both

import (
	"testing"
	"testing/synctest"

	"github.com/redlock-go/redlock/drivers/memory"
)

// A channel that many leases share is closed for one of them, and the others have a new one: who watches what they
// had before hears of it, although they have left it.
func TestALeaseThatLeavesAClosedChannelIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(memory.New(), memory.New())
		defer func() { _ = b.Close() }()
		for range 100 { // its goroutine may find both, and takes either
			l, x, y := &lease{b: b}, make(chan struct{}), make(chan struct{})
			lost := l.either(x, y)
			close(x)
			l.either(make(chan struct{}), y)
			synctest.Wait()
			if !isClosed(lost) {
				t.Fatal("it still waits for the channel that it had")
			}
		}
	})
}
