package redisnode

import (
	"context"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/memory"
)

// Bootstrap reports the server's memory, and makes b's statement: see quorum.Admin.
func (n *Node) Bootstrap(ctx context.Context, b *quorum.Bootstrap) (*quorum.MemoryReport, error) {
	if n.closed.Load() {
		return nil, driver.ErrClosed
	}
	q := n.guard.of(b.Quorum)
	switch {
	case q == nil:
		return &quorum.MemoryReport{}, nil
	case n.cfg.Cluster:
		return nil, n.guard.check(&driver.Request{Quorum: q})
	case q == n.guard.lone && b.Statement != quorum.StateNew:
		return nil, driver.Invalid("Statement", "is for the nodes of a quorum, and this is a lone server")
	}
	ctx, cancel := context.WithTimeout(ctx, n.cfg.CallTimeout)
	defer cancel()
	r, err := n.router.look(ctx)
	if err == nil && !b.DryRun {
		mode, seen := memory.Modes[b.Statement], r
		if b.Statement == quorum.StateNew && b.Observed != nil {
			seen = b.Observed
		}
		if mode == "" {
			return r, driver.Invalid("Statement", "%d is unknown", b.Statement)
		}
		if r.Memory == quorum.MemoryFlushed && seen.Memory < r.Memory {
			return r, n.explain("", errChanged) // it has given locks since, and was made to forget them
		}
		err = n.router.bootstrap(ctx, q, mode, seen)
	}
	if err != nil {
		return nil, n.explain("", err)
	}
	return r, nil
}
