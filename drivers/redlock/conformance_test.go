package redlock

import (
	"fmt"
	"testing"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestConformance(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if testing.Short() && n != 5 { // the quorum of three real servers
				t.Skip("short: one size is enough")
			}
			s := newSpaces(n)
			redlocktest.Run(t, redlocktest.Harness{
				Open: func() (driver.Backend, error) {
					nodes := make([]driver.Backend, n)
					for i := range s {
						nodes[i] = s[i].Peer()
					}
					return New(nodes, nil)
				},
				Grace:   Grace(n),
				Virtual: n != 5 || !server.IsDeep(), // real servers have real time
			})
		})
	}
}
