package consul

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/driver/base"
)

// A session of Consul, which all locks of about one TTL share. One goroutine renews it.
type session struct {
	base.Session
	b         *Backend
	seconds   int // its TTL
	extending base.Joint
	id        string                    // set with start
	start     atomic.Pointer[time.Time] // before the request that made or renewed it; nil: it is not made yet
	gone      chan struct{}             // closed when the server says that it has ended

	// With the backend's mutex:
	number   uint64 // of the last waiter
	waiters  map[uint64]*waiter
	watching bool
}

// class rounds a TTL up to whole seconds, of three binary digits at most: a backend has no more than
// four sessions for each doubling of the TTL.
func class(ttl time.Duration) int {
	n := int(math.Ceil(ttl.Seconds()))
	step := 1 << max(bits.Len(uint(n))-3, 0)
	return min((n+step-1)/step*step, int(maxTTL/time.Second))
}

// join returns the session for a lock. The caller calls keep, and in the end leave.
func (b *Backend) join(ttl time.Duration) *session {
	n := class(ttl)
	return b.sessions.Join(n, func() *session {
		return &session{b: b, seconds: n, gone: make(chan struct{}), waiters: map[uint64]*waiter{}}
	})
}

func (s *session) leave()  { s.b.sessions.Leave(s) }
func (s *session) retire() { s.b.sessions.Retire(s) }

// run renews the session, and ends it when it has been without users for long, or when the backend is
// closed and it carries no lock.
func (s *session) run(ctx context.Context) {
	used := s.b.sessions.Run(ctx, s, time.Duration(s.seconds)*time.Second/12, s.gone, func(ctx context.Context) {
		_ = s.keep(ctx, 0) // a caller that needs it asks again
	})
	if !used { // else, and if there is no answer, it ends by itself
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.b.opt.CallTimeout)
		defer cancel()
		_, _ = s.b.client.Session().Destroy(s.id, (&api.WriteOptions{}).WithContext(ctx))
	}
}

// keep makes the session, or gives it its whole TTL again, unless that was done within this time.
// Callers that meet share a request, which goes on if their contexts end: a session whose answer is
// lost lives for its whole TTL.
func (s *session) keep(ctx context.Context, age time.Duration) error {
	if s.start.Load() != nil && time.Since(s.from()) <= age {
		return nil
	}
	return s.extending.Do(ctx, &s.b.calls, s.extend)
}

func (s *session) extend(ctx context.Context) error {
	return s.b.request(ctx, func(ctx context.Context) error {
		start, opt := time.Now(), (&api.WriteOptions{}).WithContext(ctx)
		switch {
		case s.ended():
			return errNoSession
		case s.start.Load() == nil:
			var out struct{ ID string }
			// The api's Create leaves a lock-delay of 0 out, for which the server then takes 15 s.
			_, err := s.b.client.Raw().Write("/v1/session/create", map[string]any{
				"Name": "dlock", "TTL": fmt.Sprintf("%ds", s.seconds), "Behavior": api.SessionBehaviorDelete, "LockDelay": "0s",
				"NodeChecks": []string{}, "ServiceChecks": []string{}, "Checks": []string{},
			}, &out, opt)
			if err != nil {
				return err
			}
			s.id = out.ID
			s.start.Store(&start)
			s.b.calls.Go(s.run)
			return nil
		}
		e, _, err := s.b.client.Session().Renew(s.id, opt)
		if err == nil && e == nil { // a leader that was just elected may not know it yet
			e, _, err = s.b.client.Session().Info(s.id, (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
			switch {
			case err == nil && e != nil:
				return errNoLeader
			case err == nil:
				s.retire()
				close(s.gone)
				return errNoSession
			}
		}
		if err == nil {
			s.start.Store(&start)
		}
		return err
	})
}

// ended reports whether the server has said that the session has ended.
func (s *session) ended() bool {
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}

// from returns the time from which the session lasts for its whole TTL.
func (s *session) from() time.Time { return *s.start.Load() }
