package etcd

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redlock-go/redlock/driver/base"
)

// A session is an etcd lease, which all locks of one TTL share, and the last time at which it had its
// whole TTL. One goroutine keeps it alive.
type session struct {
	base.Session
	b       *Backend
	seconds int64        // its TTL
	keeping base.Joint   // the request that grants it, or keeps it alive
	late    atomic.Int64 // names that cannot be used again

	mu    sync.Mutex
	names map[string]*numbers // of entries that are there, or may come, by what their keys begin with
	id    clientv3.LeaseID    // 0: it is not granted yet
	start time.Time           // before the request to grant it, or to keep it alive
	term  uint64              // the leader's, at the last keep-alive; 0: none since the grant
}

// mostLate is how many names a session loses before another one takes its place.
const mostLate = 100

// seconds rounds a TTL up to whole seconds, as etcd counts it.
func seconds(ttl time.Duration) int64 { return int64(math.Ceil(ttl.Seconds())) }

// join returns the session for a lock. The caller calls keep, and in the end leave.
func (b *Backend) join(ttl time.Duration) *session {
	n := seconds(ttl)
	return b.sessions.Join(int(n), func() *session { return &session{b: b, seconds: n, names: map[string]*numbers{}} })
}

func (s *session) leave()  { s.b.sessions.Leave(s) }
func (s *session) retire() { s.b.sessions.Retire(s) }

// run keeps the lease alive, and ends it when it has been without users for long, or when the backend
// is closed and it carries no lock.
func (s *session) run(ctx context.Context) {
	used := s.b.sessions.Run(ctx, s, min(time.Duration(s.seconds)*time.Second/12, 5*time.Second), nil, func(ctx context.Context) {
		_ = s.keep(ctx, 0) // a caller that needs it asks again
	})
	if used || s.ended() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.b.opt.CallTimeout)
	defer cancel()
	_, _, _ = call(ctx, s.b, func(ctx context.Context, c *clientv3.Client) (*clientv3.LeaseRevokeResponse, error) {
		return c.Revoke(ctx, s.id) // else it ends by itself
	})
}

// keep gets the lease, or extends it, unless that was done within this time. Callers that meet share a
// request, which goes on if their contexts end: a lease whose answer is lost lives for its whole TTL.
func (s *session) keep(ctx context.Context, age time.Duration) error {
	s.mu.Lock()
	fresh := s.id != 0 && time.Since(s.start) <= age
	s.mu.Unlock()
	if fresh {
		return nil
	}
	return s.keeping.Do(ctx, &s.b.calls, s.extend)
}

func (s *session) extend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.b.opt.CallTimeout)
	defer cancel()
	start := time.Now()
	if s.id == 0 {
		granted, _, err := call(ctx, s.b, func(ctx context.Context, c *clientv3.Client) (*clientv3.LeaseGrantResponse, error) {
			return c.Grant(ctx, s.seconds) // if it is sent twice, a lease that nobody uses ends by itself
		})
		if err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.id, s.start = granted.ID, start
			s.b.calls.Go(s.run)
		}
		return err
	}
	answer, _, err := call(ctx, s.b, func(ctx context.Context, c *clientv3.Client) (*clientv3.LeaseKeepAliveResponse, error) {
		return c.KeepAliveOnce(ctx, s.id)
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		s.retire() // an entry that is still there shows that the leader was a former one
	}
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.start, s.term = start, answer.RaftTerm
	}
	return err
}

// covers returns the time from which the lease certainly lasts for its whole TTL, by the answer to a
// request that was sent at this time, from this term. It reports false if the leader that kept the
// lease alive is not the one of the answer: a leader that was stopped and replaced may not know
// that yet. Each term has only one leader, and a new leader gives every lease its whole TTL again.
func (s *session) covers(sent time.Time, term uint64) (from time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term == 0 {
		return s.start, true
	}
	if sent.Before(s.start) {
		return sent, s.term == term
	}
	return s.start, s.term == term
}

// ended reports whether the lease has ended, unless the server has given it more time.
func (s *session) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.start) > time.Duration(s.seconds)*time.Second
}
