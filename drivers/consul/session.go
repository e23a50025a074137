package consul

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/driver"
)

// A session of Consul, which all locks of about one TTL share. One goroutine renews it.
type session struct {
	b       *Backend
	seconds int           // its TTL
	ready   chan struct{} // closed when id or err is set
	id      string
	err     error
	gone    chan struct{}             // closed when the server says that it has ended
	turn    chan struct{}             // has a value while it is renewed
	start   atomic.Pointer[time.Time] // before the request that made or renewed it

	// With the backend's mutex:
	users    int       // attempts and leases
	idle     time.Time // since when it has no users
	number   uint64    // of the last waiter
	waiters  map[uint64]*waiter
	watching bool
}

// longestIdle is how long a session without users is renewed. A lock and its release are then two
// requests.
const longestIdle = time.Minute

// class rounds a TTL up to whole seconds, of three binary digits at most: a backend has no more than
// four sessions for each doubling of the TTL.
func class(ttl time.Duration) int {
	n := int(math.Ceil(ttl.Seconds()))
	step := 1 << max(bits.Len(uint(n))-3, 0)
	return min((n+step-1)/step*step, int(maxTTL/time.Second))
}

// join returns the session for a lock, and makes it if there is none. The caller calls leave.
func (b *Backend) join(ctx context.Context, ttl time.Duration) (*session, error) {
	n := class(ttl)
	b.mu.Lock()
	s := b.sessions[n]
	if s == nil {
		s = &session{b: b, seconds: n, ready: make(chan struct{}), gone: make(chan struct{}), turn: make(chan struct{}, 1), waiters: map[uint64]*waiter{}}
		if !b.calls.Go(s.run) {
			b.mu.Unlock()
			return nil, driver.ErrClosed
		}
		b.sessions[n] = s
	}
	s.users++
	b.mu.Unlock()
	var err error
	select {
	case <-s.ready:
		err = s.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		s.leave()
		return nil, err
	}
	return s, nil
}

// leave ends what join began.
func (s *session) leave() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.users--
	s.idle = time.Now()
}

// retire lets later locks use another session, unless it has users and must not. The locks that use
// this one keep it.
func (s *session) retire(unused bool) bool {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if unused && (s.users > 0 || time.Since(s.idle) < longestIdle) {
		return false
	}
	if s.b.sessions[s.seconds] == s {
		delete(s.b.sessions, s.seconds)
	}
	return true
}

// run makes the session, renews it, and ends it when it has been without users for long, or when the
// backend is closed and it carries no lock. It goes on if the caller's context ends, since a session
// whose answer is lost lives for its whole TTL.
func (s *session) run(ctx context.Context) {
	start := time.Now()
	s.id, s.err = s.create(ctx)
	s.start.Store(&start)
	if s.err != nil {
		s.retire(false)
	}
	if close(s.ready); s.err != nil {
		return
	}
	tick := time.NewTicker(time.Duration(s.seconds) * time.Second / 12)
	defer tick.Stop()
	for !s.ended() && ctx.Err() == nil && !s.retire(true) {
		select {
		case <-tick.C:
			_ = s.renew(ctx, 0) // a caller that needs it asks again
		case <-s.gone:
		case <-ctx.Done():
		}
	}
	s.b.mu.Lock()
	used := s.users > 0
	s.b.mu.Unlock()
	if !used { // else, and if there is no answer, it ends by itself
		ctx, cancel := context.WithTimeout(context.Background(), s.b.opt.CallTimeout)
		defer cancel()
		_, _ = s.b.client.Session().Destroy(s.id, (&api.WriteOptions{}).WithContext(ctx))
	}
}

func (s *session) create(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.b.opt.CallTimeout)
	defer cancel()
	var out struct{ ID string }
	// The api's Create leaves a lock-delay of 0 out, for which the server then takes 15 s.
	_, err := s.b.client.Raw().Write("/v1/session/create", map[string]any{
		"Name": "dlock", "TTL": fmt.Sprintf("%ds", s.seconds), "Behavior": api.SessionBehaviorDelete, "LockDelay": "0s",
		"NodeChecks": []string{}, "ServiceChecks": []string{}, "Checks": []string{},
	}, &out, (&api.WriteOptions{}).WithContext(ctx))
	return out.ID, explain(err)
}

// renew gives the session its whole TTL again, unless that was done within this time.
func (s *session) renew(ctx context.Context, age time.Duration) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.turn }()
	if time.Since(s.from()) <= age {
		return nil
	}
	if s.ended() {
		return errNoSession
	}
	ctx, cancel := context.WithTimeout(ctx, s.b.opt.CallTimeout)
	defer cancel()
	start := time.Now()
	e, _, err := s.b.client.Session().Renew(s.id, (&api.WriteOptions{}).WithContext(ctx))
	switch {
	case err != nil:
		return explain(err)
	case e == nil:
		s.retire(false)
		close(s.gone)
		return errNoSession
	}
	s.start.Store(&start)
	return nil
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
