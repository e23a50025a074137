package peers

import (
	"context"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"github.com/redlock-go/redlock/benchmark/internal/bench"
	"github.com/valkey-io/valkey-go"
	"github.com/valkey-io/valkey-go/valkeylock"
)

// trackers returns the libraries that wait by client-side caching. They renew by
// themselves and offer no call for it; what they call a lock on one server has
// KeyMajority 1.
func trackers() []bench.Contestant {
	base := bench.Contestant{Kind: bench.Peer, Serves: bench.OneKeyStore, Waits: true}
	const how = " with KeyMajority 1 and NoLoopTracking, as its README says for one server, and KeyValidity as the TTL of the others"

	v := base
	v.Name, v.Client, v.How = "valkeylock, valkey-go", "valkey-go", "valkeylock"+how
	v.Open = func(_ context.Context, s *bench.Setup) (bench.Locker, error) {
		l, err := valkeylock.NewLocker(valkeylock.LockerOption{
			ClientOption: valkey.ClientOption{InitAddress: []string{s.Nodes[0].Addr}, ForceSingleClient: true},
			KeyMajority:  1, NoLoopTracking: true, KeyValidity: s.TTL,
		})
		return tracker{l}, err
	}

	r := base
	r.Name, r.Client, r.How = "rueidislock, rueidis", "rueidis", "rueidislock"+how
	r.Open = func(_ context.Context, s *bench.Setup) (bench.Locker, error) {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{s.Nodes[0].Addr}, ForceSingleClient: true},
			KeyMajority:  1, NoLoopTracking: true, KeyValidity: s.TTL,
		})
		return tracker{l}, err
	}
	return []bench.Contestant{v, r}
}

// locker is what both libraries offer.
type locker interface {
	WithContext(ctx context.Context, name string) (context.Context, context.CancelFunc, error)
	TryWithContext(ctx context.Context, name string) (context.Context, context.CancelFunc, error)
	Close()
}

type tracker struct{ l locker }

func (t tracker) Lock(ctx context.Context, key string, wait bool) (bench.Held, error) {
	take := t.l.TryWithContext
	if wait {
		take = t.l.WithContext
	}
	held, cancel, err := take(ctx, key)
	if err != nil {
		return nil, err
	}
	return tracked{held, cancel}, nil
}

func (t tracker) Close() error {
	t.l.Close()
	return nil
}

// tracked is a lock that lives with a context.
type tracked struct {
	ctx    context.Context
	cancel context.CancelFunc
}

func (t tracked) Renew(context.Context) error { return nil }
func (t tracked) Done() <-chan struct{}       { return t.ctx.Done() }

func (t tracked) Unlock() error {
	t.cancel()
	return nil
}
