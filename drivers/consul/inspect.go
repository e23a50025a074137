package consul

import (
	"cmp"
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// Lookup returns the holder of key, how many wait, and the first of them in order.
func (b *Backend) Lookup(ctx context.Context, key string) (s *driver.State, err error) {
	err = b.calls.Do(ctx, b.opt.CallTimeout, func(call *base.Call) error {
		st, err := b.read(call, b.Path(key))
		if err != nil {
			return err
		}
		s = &driver.State{Key: key, Waiters: len(st.waiters)}
		for _, p := range st.waiters[:min(len(st.waiters), 100)] {
			s.Queue = append(s.Queue, driver.Holder{Owner: holder(p).Owner})
		}
		if isHeld(st.lock) {
			s.Holders = []driver.Holder{holder(st.lock)}
		} else if s.Waiters > 0 {
			s.ReservedFor = lookEvery
		}
		return nil
	})
	return s, err
}

// List yields the held keys that begin with prefix, without their waiters.
func (b *Backend) List(ctx context.Context, prefix string, yield func(*driver.State) bool) error {
	var all api.KVPairs
	err := b.calls.Do(ctx, 10*b.opt.CallTimeout, func(call *base.Call) (err error) { // there may be many
		defer base.Contain(&err)
		all, _, err = b.client.KV().List(b.Path(prefix), consistent(call))
		return explain(err)
	})
	for _, p := range all {
		p = cmp.Or(p, &api.KVPair{})
		full, bad := url.PathUnescape(strings.TrimPrefix(p.Key, b.opt.Path+"/"))
		key, ours := strings.CutPrefix(full, b.opt.Prefix)
		ours = ours && bad == nil && b.Path(key) == p.Key && isHeld(p)
		if ours && !yield(&driver.State{Key: key, Holders: []driver.Holder{holder(p)}}) {
			break
		}
	}
	return err
}

// Break frees the lock of the holder with this token, which learns of it at its next renewal.
func (b *Backend) Break(ctx context.Context, key string, h driver.Holder) error {
	return b.calls.Do(ctx, b.opt.CallTimeout, func(call *base.Call) error {
		return b.free(call, b.Path(key), nil, func(p *api.KVPair) bool { return isHeld(p) && holder(p).Fence == h.Fence })
	})
}

// Check examines the servers, and whether the token has the permissions that locks need.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	found := &base.Findings{Node: b.address}
	return found.Result(b.calls.Do(ctx, b.opt.CallTimeout, func(call *base.Call) error {
		s := b.join(b.opt.SessionTTLMin)
		defer s.leave()
		if err := s.keep(call, b.opt.SessionTTLMin/8); err != nil { // refused: the TTL, or the permission
			return err
		}
		probe := b.root() + "check/" + s.id
		sent := time.Now()
		if _, err := b.txn(call, hold(probe, s.id, nil), get(probe), below(b.root()+"check/"), drop(probe)); err != nil {
			return err
		}
		found.Clock(b.now(), sent)
		found.Add("session-ttl", driver.SeverityNote, "", "the servers keep a dead process's locks for up to twice their TTL, %v at least", b.opt.SessionTTLMin).Measured = b.opt.SessionTTLMin.String()
		found.Add("lock-delay", driver.SeverityNote, "", "the locks of this driver have the least lock-delay; those of another program stay for its own when its session ends").Measured = leastDelay.String()
		peers, err := b.client.Status().PeersWithQueryOptions((&api.QueryOptions{}).WithContext(call))
		if err == nil {
			found.Members(len(peers), 0) // one agent's address is enough
		}
		return explain(err)
	}))
}
