package peers

import (
	"context"

	"github.com/redlock-go/redlock/benchmark/internal/bench"
	"github.com/valkey-io/valkey-go"
	"github.com/valkey-io/valkey-go/valkeylock"
)

// trackers returns valkeylock, which waits with client-side caching. The library rueidislock is
// the same code over rueidis.
func trackers() []bench.Contestant {
	return []bench.Contestant{{
		Name: "valkeylock", Client: "valkey-go", Kind: bench.Peer, Serves: bench.OneKeyStore, Waits: true,
		How: "valkeylock with KeyMajority 1 and NoLoopTracking, as its README says for one server, and KeyValidity as the TTL of the others",
		Open: func(_ context.Context, s *bench.Setup) (*bench.Client, error) {
			l, err := valkeylock.NewLocker(valkeylock.LockerOption{
				ClientOption: valkey.ClientOption{InitAddress: s.Addrs, ForceSingleClient: true},
				KeyMajority:  1, NoLoopTracking: true, KeyValidity: s.TTL,
			})
			if err != nil {
				return nil, err
			}
			return &bench.Client{Close: func() error { l.Close(); return nil }, Lock: func(ctx context.Context, key string, wait bool) (func() error, error) {
				take := l.TryWithContext
				if wait {
					take = l.WithContext
				}
				_, cancel, err := take(ctx, key) // the lock lasts as long as a context
				return func() error { cancel(); return nil }, err
			}}, nil
		},
	}}
}
