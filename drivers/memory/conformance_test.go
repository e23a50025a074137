package memory

import (
	"context"
	"errors"
	"testing"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
)

var errCut = errors.New("the connection was cut")

func TestConformance(t *testing.T) {
	const prefix = "app:"
	d := new(Driver)
	space := &Backend{space: d.space("conformance"), prefix: prefix, info: own}
	redlocktest.Run(t, redlocktest.Harness{
		Open:    func() (driver.Backend, error) { return space.Peer(), nil },
		Driver:  d,
		URL:     "memory:conformance",
		Prefix:  prefix,
		Virtual: testing.Short(), // in full runs goroutines run as they do in programs
		Faults: &redlocktest.Faults{
			Partition: func(b driver.Backend) error { b.(*Backend).Fail(errCut); return nil },
			Heal:      func(b driver.Backend) error { b.(*Backend).Fail(nil); return nil },
		},
		Residue: func(context.Context) ([]string, error) {
			space.space.mu.Lock()
			defer space.space.mu.Unlock()
			var keys []string
			for key, e := range space.space.entries {
				if len(e.holders)+len(e.queue)+len(e.watches) > 0 {
					keys = append(keys, key)
				}
			}
			return keys, nil
		},
	})
}
