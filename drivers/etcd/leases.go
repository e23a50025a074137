package etcd

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A life is an etcd lease, which carries one lock at a time, and the last time at which it had
// its whole TTL.
type life struct {
	id      clientv3.LeaseID
	seconds int64
	start   time.Time // before the request to grant it, or to keep it alive
	term    uint64    // the leader's, at the last keep-alive; 0: none since the grant
	locks   int       // how many locks it has carried
	// tainted: a request that attaches a key to it may be under way, so that it cannot
	// carry another lock.
	tainted bool
}

// Idle leases wait for another lock. Reusing one saves two of four writes: the cluster writes
// when it grants or revokes a lease, but not when it keeps one alive. They are few, and are not
// kept for long.
const (
	mostIdle    = 128
	longestIdle = time.Minute
)

// seconds rounds a TTL up to whole seconds, as etcd counts it.
func seconds(ttl time.Duration) int64 { return int64(math.Ceil(ttl.Seconds())) }

// ended reports whether l has ended, unless the server has given it more time.
func (l *life) ended() bool { return time.Since(l.start) > time.Duration(l.seconds)*time.Second }

// coming is an etcd lease that newLife is about to return, or its error.
type coming struct {
	done chan struct{}
	life *life
	err  error
}

// order begins to get an etcd lease for a lock. It goes on if ctx ends, since a lease whose answer
// is lost lives for its whole TTL. The caller calls await or spare.
func (b *Backend) order(ctx context.Context, ttl time.Duration) *coming {
	c := &coming{done: make(chan struct{})}
	b.wg.Go(func() {
		defer close(c.done)
		ctx, cancel := b.bound(context.WithoutCancel(ctx))
		defer cancel()
		c.life, c.err = b.newLife(ctx, ttl)
	})
	return c
}

// await returns the lease.
func (b *Backend) await(ctx context.Context, c *coming) (*life, error) {
	select {
	case <-c.done:
		return c.life, c.err
	case <-ctx.Done():
		b.spare(c)
		return nil, ctx.Err()
	}
}

// spare leaves the lease for another lock.
func (b *Backend) spare(c *coming) {
	b.wg.Go(func() {
		if <-c.done; c.err == nil {
			b.leave(c.life)
		}
	})
}

// newLife returns an etcd lease for a lock. A lease that was idle is certain to be alive only
// if the leader has not changed before a later answer: see current.
func (b *Backend) newLife(ctx context.Context, ttl time.Duration) (*life, error) {
	n := seconds(ttl)
	if l, fresh := b.takeIdle(ttl); l != nil {
		if fresh || b.keepAlive(ctx, l) == nil {
			return l, nil
		}
	}
	l := &life{seconds: n, start: time.Now()}
	granted, _, err := call(ctx, b, func(ctx context.Context, c *clientv3.Client) (*clientv3.LeaseGrantResponse, error) {
		l.start = time.Now() // an earlier try may have granted another lease, which ends by itself
		return c.Grant(ctx, n)
	})
	if err != nil {
		return nil, err
	}
	l.id = granted.ID
	return l, nil
}

// keepAlive extends l's life.
func (b *Backend) keepAlive(ctx context.Context, l *life) error {
	var start time.Time
	answer, _, err := call(ctx, b, func(ctx context.Context, c *clientv3.Client) (*clientv3.LeaseKeepAliveResponse, error) {
		start = time.Now()
		return c.KeepAliveOnce(ctx, l.id)
	})
	if err != nil {
		return err
	}
	l.start, l.term = start, answer.RaftTerm
	return nil
}

// current reports whether the leader that kept l alive is the one that answered a later
// request, in this term. A leader that was stopped and replaced may not know that yet. Each
// term has only one leader, and a new leader gives every lease its whole TTL again.
func (l *life) current(term uint64) bool { return l.term == 0 || l.term == term }

// takeIdle returns an idle lease that has not ended, or nil. A fresh lease has used less than a
// tenth of its TTL, so a lock may use it without a keep-alive.
func (b *Backend) takeIdle(ttl time.Duration) (l *life, fresh bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := len(b.idle) - 1; i >= 0; i-- {
		old := b.idle[i]
		if old.seconds != seconds(ttl) {
			continue
		}
		b.idle = slices.Delete(b.idle, i, i+1)
		age := time.Since(old.start)
		if age > ttl*3/4 {
			return nil, false
		}
		return old, age < ttl/10
	}
	return nil, false
}

// forgetIdle drops the idle leases, since one of them has ended early: the next locks need not
// find that out for each of them. Those that live end by themselves.
func (b *Backend) forgetIdle() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.idle = nil
}

// leave takes back a lease that no longer carries a lock. It keeps the lease for the next lock,
// or ends it. Of too many it ends the one that has been idle for longest.
func (b *Backend) leave(l *life) {
	if l.tainted || time.Duration(l.seconds)*time.Second > longestIdle {
		b.revoke(l)
		return
	}
	b.mu.Lock()
	if !b.closed {
		b.idle = append(b.idle, l)
		l = nil
		if len(b.idle) > mostIdle {
			l = b.idle[0]
			b.idle = slices.Delete(b.idle, 0, 1)
		}
	}
	b.mu.Unlock()
	if l != nil && !l.ended() {
		b.revoke(l)
	}
}

// revoke ends a lease in the background, with all entries that are or will be attached to it. While
// no server answers it tries again, until Close: a new leader would give the lease its whole TTL
// again. The caller is counted in b.wg.
func (b *Backend) revoke(l *life) {
	b.wg.Go(func() {
		ctx, cancel := b.cleanup()
		defer cancel()
		b.revokeNow(ctx, l.id)
	})
}

func (b *Backend) revokeNow(ctx context.Context, id clientv3.LeaseID) {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		_, _, err := call(ctx, b, func(ctx context.Context, c *clientv3.Client) (*clientv3.LeaseRevokeResponse, error) {
			return c.Revoke(ctx, id)
		})
		if err == nil || definite(err) || errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// revokeIdle ends the idle leases, as far as the servers answer within the call timeout.
func (b *Backend) revokeIdle() {
	b.mu.Lock()
	idle := b.idle
	b.idle = nil
	connected := b.client != nil
	b.mu.Unlock()
	if !connected {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), b.opt.CallTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, l := range idle {
		if !l.ended() {
			wg.Go(func() { b.revokeNow(ctx, l.id) })
		}
	}
	wg.Wait()
}
