package etcd

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redlock-go/redlock/driver/base"
)

// A session is an etcd lease, which all locks of one TTL share, and the last time at which it had its
// whole TTL. One goroutine keeps it alive.
type session struct {
	b       *Backend
	seconds int64   // its TTL
	ready   *flight // that grants it
	id      clientv3.LeaseID

	mu      sync.Mutex
	start   time.Time // before the request to grant it, or to keep it alive
	term    uint64    // the leader's, at the last keep-alive; 0: none since the grant
	keeping *flight   // the keep-alive under way
	entries int       // how many it has carried
	users   int       // attempts and leases
	idle    time.Time // since when it has no users
	retired bool      // it carries no more entries
	doubts  int       // tombstones
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

// join returns a session for a lock, and makes it if there is none. The caller calls leave.
func (b *Backend) join(ctx context.Context, ttl time.Duration) (*session, error) {
	n := seconds(ttl)
	b.mu.Lock()
	s := b.sessions[n]
	if s == nil {
		s = &session{b: b, seconds: n}
		b.sessions[n] = s
		s.ready = b.fly(s.run)
	}
	s.mu.Lock()
	s.users++
	s.mu.Unlock()
	b.mu.Unlock()
	if err := s.ready.wait(ctx); err != nil {
		s.leave()
		return nil, err
	}
	return s, nil
}

// leave ends what join began.
func (s *session) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	s.idle = time.Now()
}

// retire lets later locks use another session. The locks that use this one keep it.
func (s *session) retire() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if s.b.sessions[s.seconds] == s {
		delete(s.b.sessions, s.seconds)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retired = true
}

// run gets the lease, keeps it alive, and ends it when it has been without users for long. It goes on
// if the caller's context ends, since a lease whose answer is lost lives for its whole TTL.
func (s *session) run(ctx context.Context, ready *flight) {
	err := s.grant(ctx)
	if err != nil {
		s.forget()
	}
	if ready.end(err); err != nil {
		return
	}
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

// grant gets the lease.
func (s *session) grant(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.b.opt.CallTimeout)
	defer cancel()
	s.start = time.Now()
	granted, _, err := call(ctx, s.b, func(ctx context.Context, c *clientv3.Client) (*clientv3.LeaseGrantResponse, error) {
		return c.Grant(ctx, s.seconds) // if it is sent twice, a lease that nobody uses ends by itself
	})
	if err == nil {
		s.id, s.idle = granted.ID, time.Now()
	}
	return err
}

// unused retires a session that has had no users for long.
func (s *session) unused() bool {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users > 0 || !s.retired && time.Since(s.idle) < longestIdle {
		return false
	}
	s.remove()
	return true
}

// forget removes a session that could not be made.
func (s *session) forget() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.remove()
}

// remove is called under b.mu.
func (s *session) remove() {
	if s.b.sessions[s.seconds] == s {
		delete(s.b.sessions, s.seconds)
	}
}

// keep extends the lease, unless that was done within this time. Callers that meet share a request.
func (s *session) keep(ctx context.Context, age time.Duration) error {
	s.mu.Lock()
	if time.Since(s.start) <= age {
		s.mu.Unlock()
		return nil
	}
	if s.keeping == nil {
		s.keeping = s.b.fly(s.extend)
	}
	k := s.keeping
	s.mu.Unlock()
	return k.wait(ctx)
}

func (s *session) extend(ctx context.Context, k *flight) {
	ctx, cancel := context.WithTimeout(ctx, s.b.opt.CallTimeout)
	defer cancel()
	start := time.Now()
	answer, _, err := call(ctx, s.b, func(ctx context.Context, c *clientv3.Client) (*clientv3.LeaseKeepAliveResponse, error) {
		return c.KeepAliveOnce(ctx, s.id)
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		s.retire() // an entry that is still there shows that the leader was a former one
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.start, s.term = start, answer.RaftTerm
	}
	s.keeping = nil
	k.end(err)
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

// entry returns the number of another entry.
func (s *session) entry() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries++
	return s.entries
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
	s.mu.Lock()
	used := s.users > 0
	s.mu.Unlock()
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
			if s.doubted() > mostDoubts {
				s.retire()
			}
			return err
		}
	}
	_, err := b.do(ctx, &part{gone: key})
	return err
}

// doubted counts a tombstone.
func (s *session) doubted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doubts++
	return s.doubts
}
