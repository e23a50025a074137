package consul

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// do calls f as one call.
func (b *Backend) do(ctx context.Context, f func(call *base.Call) error) error {
	call, err := b.calls.Begin(ctx, b.opt.CallTimeout)
	if err != nil {
		return err
	}
	defer call.End()
	return call.Failed(f(call))
}

// mostQueue is how many waiters Lookup names.
const mostQueue = 100

// Lookup returns the holder of key, its waiters, and the first of them in order.
func (b *Backend) Lookup(ctx context.Context, key string) (s *driver.State, err error) {
	err = b.do(ctx, func(call *base.Call) error {
		st, err := b.read(call, b.Path(key))
		if err != nil {
			return err
		}
		s = &driver.State{Key: key, Waiters: len(st.waiters)}
		switch {
		case st.held():
			s.Holders = []driver.Holder{holder(st.lock)}
		case len(st.waiters) > 0:
			s.ReservedFor = lookEvery
		}
		for _, p := range st.waiters[:min(len(st.waiters), mostQueue)] {
			w := holder(p)
			s.Queue = append(s.Queue, driver.Holder{Owner: w.Owner, Since: w.Since})
		}
		return nil
	})
	return s, err
}

// List yields the held keys that begin with prefix, without their waiters.
func (b *Backend) List(ctx context.Context, prefix string, yield func(*driver.State) bool) error {
	var ops []*api.KVTxnOp
	err := b.do(ctx, func(call *base.Call) error {
		all, _, err := b.client.KV().Keys(b.opt.Path+"/", "/", (&api.QueryOptions{RequireConsistent: true}).WithContext(call))
		for _, lock := range all {
			if key, ours := b.keyOf(lock); ours && strings.HasPrefix(key, prefix) {
				ops = append(ops, get(lock))
			}
		}
		return explain(err)
	})
	for len(ops) > 0 && err == nil {
		n := min(len(ops), mostLooks)
		var some []*driver.State
		err = b.do(ctx, func(call *base.Call) error {
			a, err := b.txn(call, ops[:n]...)
			for lock, p := range a {
				if key, _ := b.keyOf(lock); p.Session != "" {
					some = append(some, &driver.State{Key: key, Holders: []driver.Holder{holder(p)}})
				}
			}
			return err
		})
		for _, s := range some {
			if !yield(s) {
				return err
			}
		}
		ops = ops[n:]
	}
	return err
}

// keyOf returns the key of a lock, without the prefix, and whether the backend could have it.
func (b *Backend) keyOf(lock string) (string, bool) {
	full, err := url.PathUnescape(strings.TrimPrefix(lock, b.opt.Path+"/"))
	key, ours := strings.CutPrefix(full, b.opt.Prefix)
	return key, err == nil && ours && b.Path(key) == lock
}

// Break frees the lock of the holder with this token, which learns of it at its next renewal.
func (b *Backend) Break(ctx context.Context, key string, h driver.Holder) error {
	return b.do(ctx, func(call *base.Call) error {
		for {
			st, err := b.read(call, b.Path(key))
			switch {
			case err != nil:
				return err
			case !st.held() || fence(st.lock) != h.Fence:
				return driver.ErrLost
			}
			if err := b.pass(call, st); !errors.Is(err, errConflict) {
				return err
			}
		}
	})
}

// Check examines the servers, and whether the token has the permissions that locks need.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	found := &base.Findings{Node: b.address}
	return found.Result(b.do(ctx, func(call *base.Call) error {
		s, err := b.join(call, b.opt.SessionTTLMin) // refused: the TTL, or the permission
		if err != nil {
			return err
		}
		defer s.leave()
		probe := b.root() + "check/" + s.id
		sent := time.Now()
		_, err = b.txn(call, hold(probe, s.id, nil), there(probe), below(b.root()+"check/"))
		if err == nil {
			_, err = b.txn(call, drop(probe))
		}
		if err != nil {
			return err
		}
		found.Clock(b.now(), sent)
		found.Add("session-ttl", driver.SeverityNote, "", "the servers keep a dead process's locks for up to twice their TTL, %v at least", b.opt.SessionTTLMin).Measured = b.opt.SessionTTLMin.String()
		found.Add("lock-delay", driver.SeverityNote, "", "the locks of this driver have no lock-delay; those of another program stay for its own when its session ends").Measured = "0s"
		peers, err := b.client.Status().PeersWithQueryOptions((&api.QueryOptions{}).WithContext(call))
		if n := len(peers); err == nil && n < 3 {
			found.Add("few-servers", driver.SeverityWarning, "run three or five servers", "%d of the servers is enough to stop all locks while it is away", 1).Measured = strconv.Itoa(n)
		}
		return explain(err)
	}))
}
