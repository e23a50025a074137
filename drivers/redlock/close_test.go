package redlock

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// slow is a node whose Close takes long.
type slow struct{ named }

func (s slow) Close() error {
	time.Sleep(time.Second) // virtual time of synctest
	return s.named.Close()
}

// Several nodes that do not answer delay Close only as long as one.
func TestNodesAreClosedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := Driver{}.Open(&driver.Config{
			DSN:     "redlock:a:,b:,c:,d:,e:",
			Resolve: func(url string) (driver.Backend, error) { return slow{named{memory.New(), url}}, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d != time.Second {
			t.Errorf("Close took %v", d)
		}
		for i, n := range b.(*Backend).nodes {
			if _, err := n.backend.Acquire(context.Background(), request1("k", fmt.Sprint("o", i), time.Second)); err == nil {
				t.Errorf("node %d is open", i)
			}
		}
	})
}
