//go:build unix

package promlock_test

import (
	"testing"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/internal/paired"
	"github.com/redlock-go/redlock/dlock/promlock"
)

// The cost of all metrics: see paired.FiveNodes.
func BenchmarkFiveNodes(b *testing.B) {
	metrics := promlock.New(nil)
	paired.FiveNodes(b, metrics.Hooks(), func(c *dlock.Client) { metrics.Add(c) }, nil)
}
