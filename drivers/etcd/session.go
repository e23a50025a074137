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
	b       *Backend
	seconds int64      // its TTL
	keeping base.Joint // the request that grants it, or keeps it alive
	entries atomic.Int64
	doubts  atomic.Int64 // tombstones

	// Under b.mu. A session that is not in b.sessions carries no more entries.
	users int       // attempts and leases
	idle  time.Time // since when it has no users

	mu    sync.Mutex
	id    clientv3.LeaseID // 0: it is not granted yet
	start time.Time        // before the request to grant it, or to keep it alive
	term  uint64           // the leader's, at the last keep-alive; 0: none since the grant
}

const (
	// longestIdle is how long a session without users is kept alive. A lock and its release are then
	// two writes of the cluster, otherwise four.
	longestIdle = time.Minute
	// mostDoubts is how many tombstones a session gathers before another one takes its place.
	mostDoubts = 100
)

// seconds rounds a TTL up to whole seconds, as etcd counts it.
func seconds(ttl time.Duration) int64 { return int64(math.Ceil(ttl.Seconds())) }

// join returns the session for a lock. The caller calls keep, and in the end leave.
func (b *Backend) join(ttl time.Duration) *session {
	n := seconds(ttl)
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sessions[n]
	if s == nil {
		s = &session{b: b, seconds: n}
		b.sessions[n] = s
	}
	s.users++
	return s
}

// leave ends what join began.
func (s *session) leave() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.users--
	s.idle = time.Now()
}

// retire lets later locks use another session. The locks that use this one keep it.
func (s *session) retire() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.remove()
}

// unused retires a session that has had no users for long.
func (s *session) unused() bool {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	current := s.b.sessions[s.seconds] == s
	if s.users > 0 || current && time.Since(s.idle) < longestIdle {
		return false
	}
	s.remove()
	return true
}

// remove is called under b.mu.
func (s *session) remove() {
	if s.b.sessions[s.seconds] == s {
		delete(s.b.sessions, s.seconds)
	}
}

// run keeps the lease alive, and ends it when it has been without users for long.
func (s *session) run(ctx context.Context) {
	tick := time.NewTicker(min(time.Duration(s.seconds)*time.Second/12, 5*time.Second))
	defer tick.Stop()
	for !s.unused() {
		select {
		case <-tick.C:
			_ = s.keep(ctx, 0) // a caller that needs it asks again
		case <-ctx.Done():
			s.endUnused(context.WithoutCancel(ctx))
			return
		}
	}
	s.b.calls.Undo(time.Now().Add(time.Duration(s.seconds)*time.Second), func(call *base.Call) error { return s.revoke(call) })
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

// revoke ends the lease, with all entries that are or will be attached to it.
func (s *session) revoke(ctx context.Context) error {
	_, _, err := call(ctx, s.b, func(ctx context.Context, c *clientv3.Client) (*clientv3.LeaseRevokeResponse, error) {
		return c.Revoke(ctx, s.id)
	})
	return unanswered(err)
}

// endUnused ends the lease for Close, if it carries no lock, and a server answers within the call
// timeout.
func (s *session) endUnused(ctx context.Context) {
	s.b.mu.Lock()
	used := s.users > 0
	s.b.mu.Unlock()
	if used || s.ended() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.b.opt.CallTimeout)
	defer cancel()
	_ = s.revoke(ctx) // else it ends by itself
}

// abandon deletes an entry in the background, until a server has answered or Close gives up: the
// session may go on for other locks. If doubt is set, the request that adds the entry may arrive
// later. It ends what join began.
func (b *Backend) abandon(s *session, key string, doubt bool) {
	b.calls.Undo(time.Time{}, func(call *base.Call) error {
		err := unanswered(b.deleteEntry(call, s, key, doubt))
		if err == nil {
			s.leave()
		}
		return err
	})
}

// deleteEntry deletes an entry that was made in this session. If the request that adds the entry
// may still be under way, a tombstone refuses it; the tombstone ends with the lease, and then the
// request fails anyway.
func (b *Backend) deleteEntry(ctx context.Context, s *session, key string, doubt bool) error {
	if doubt {
		grave := clientv3.OpPut(b.tombstone(key), "", clientv3.WithLease(s.id))
		_, err := b.do(ctx, &part{then: []clientv3.Op{grave, clientv3.OpDelete(key)}})
		if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			if s.doubts.Add(1) > mostDoubts {
				s.retire()
			}
			return err
		}
	}
	_, err := b.do(ctx, &part{then: []clientv3.Op{clientv3.OpDelete(key)}})
	return err
}
