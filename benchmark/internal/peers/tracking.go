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
		Name: "valkeylock, valkey-go", Kind: bench.Peer, Client: "valkey-go", Serves: bench.OneKeyStore, Waits: true,
		How: "valkeylock with KeyMajority 1 and NoLoopTracking, as its README says for one server, and KeyValidity as the TTL of the others",
		Open: func(_ context.Context, s *bench.Setup) (bench.Locker, error) {
			l, err := valkeylock.NewLocker(valkeylock.LockerOption{
				ClientOption: valkey.ClientOption{InitAddress: []string{s.Nodes[0].Addr}, ForceSingleClient: true},
				KeyMajority:  1, NoLoopTracking: true, KeyValidity: s.TTL,
			})
			return tracker{l}, err
		},
	}}
}

type tracker struct{ valkeylock.Locker }

func (t tracker) Lock(ctx context.Context, key string, wait bool) (bench.Held, error) {
	take := t.TryWithContext
	if wait {
		take = t.WithContext
	}
	_, cancel, err := take(ctx, key)
	return tracked(cancel), err
}

func (t tracker) Close() error { t.Locker.Close(); return nil }

// tracked is a lock that lasts as long as a context, which it ends.
type tracked context.CancelFunc

func (t tracked) Unlock() error { t(); return nil }
