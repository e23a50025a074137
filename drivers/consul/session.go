package consul

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/driver/base"
)

// leastDelay is the lock-delay of the sessions.
const leastDelay = time.Millisecond

// A session of Consul, which all locks of about one TTL share. One goroutine renews it.
type session struct {
	base.Session
	b         *Backend
	seconds   int // its TTL
	extending base.Joint
	id        string                    // set with start
	start     atomic.Pointer[time.Time] // before the request that made or renewed it; nil: it is not made yet
	gone      context.Context           // ends when the server says that the session has ended
	end       context.CancelFunc        // ends gone

	// With the backend's mutex:
	waiters  map[*attempt]bool
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
		gone, end := context.WithCancel(context.Background())
		return &session{b: b, seconds: n, gone: gone, end: end, waiters: map[*attempt]bool{}}
	})
}

func (s *session) leave() { s.b.sessions.Leave(s) }

// A user is an attempt or a lease that uses a session.
type user struct {
	s    *session // nil: none
	left bool     // it no longer uses the session
}

// leave ends what join began.
func (u *user) leave() {
	if u.s != nil && !u.left {
		u.left = true
		u.s.leave()
	}
}

// end lets what the token may not remove, with this error, end with the session, which no later lock uses. It
// returns nil if the session has ended.
func (u *user) end(ctx context.Context, err error) error {
	if u.s == nil {
		return nil
	}
	u.s.b.sessions.Retire(u.s)
	u.leave()
	asked := u.s.b.request(ctx, func(ctx context.Context) error {
		e, _, err := u.s.b.client.Session().Info(u.s.id, consistent(ctx))
		if err == nil && e == nil {
			return errNoSession
		}
		return err
	})
	if errors.Is(asked, errNoSession) {
		return nil
	}
	return err
}

// run renews the session, and ends it when it has been without users for long, or when the backend is
// closed and it carries no lock.
func (s *session) run(ctx context.Context) {
	used := s.b.sessions.Run(ctx, s, time.Duration(s.seconds)*time.Second/12, s.gone.Done(), func(ctx context.Context) {
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
	if !s.ended() && s.start.Load() != nil && time.Since(s.from()) <= age {
		return nil
	}
	return s.extending.Do(ctx, &s.b.calls, s.extend)
}

func (s *session) extend(ctx context.Context) error {
	if s.ended() {
		return errNoSession
	}
	var start time.Time
	err := s.b.request(ctx, func(ctx context.Context) (err error) {
		start = time.Now()
		opt := (&api.WriteOptions{}).WithContext(ctx)
		if s.start.Load() == nil { // the api leaves out a lock-delay of zero, for which the server takes 15 s
			s.id, _, err = s.b.client.Session().CreateNoChecks(&api.SessionEntry{
				Name: "dlock", TTL: fmt.Sprintf("%ds", s.seconds), Behavior: api.SessionBehaviorDelete, LockDelay: leastDelay,
			}, opt)
			return err
		}
		e, _, err := s.b.client.Session().Renew(s.id, opt)
		if err != nil || e != nil {
			return err
		}
		if e, _, err = s.b.client.Session().Info(s.id, consistent(ctx)); err == nil && e == nil {
			return errNoSession
		}
		return cmp.Or(err, errNoLeader) // one that was just elected does not know it yet
	})
	switch made := s.start.Load() == nil; {
	case err == nil:
		s.start.Store(&start)
		if made {
			s.b.calls.Go(s.run)
		}
	case errors.Is(err, errNoSession):
		s.b.sessions.Retire(s)
		s.end()
	}
	return err
}

// ended reports whether the server has said that the session has ended.
func (s *session) ended() bool { return s.gone.Err() != nil }

// from returns the time from which the session lasts for its whole TTL.
func (s *session) from() time.Time { return *s.start.Load() }

// All waiters of a session share one open query: for the marks of those that got their locks.

// lookEvery is how often a backend looks whether locks that its waiters want are free, since a
// session has ended, or because another program freed them.
const lookEvery = 2 * time.Second

// mostLooks is how many locks one request looks at.
const mostLooks = 64

// marks is the key below which the marks of a session's waiters are, or the mark of one of them.
func (b *Backend) marks(id string) string { return b.root() + "m/" + id }

// place is where the attempt waits.
func (a *attempt) place() string { return a.b.queue(a.lock) + a.id }

// register makes the attempt a waiter of its session.
func (a *attempt) register() {
	s := a.s
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if !s.watching {
		s.watching = s.b.calls.Go(s.watch) // else the backend is closed, and the wait ends
	}
	a.id, a.told = s.id+"/"+strconv.FormatUint(rand.Uint64(), 36), make(chan struct{}, 1)
	s.waiters[a] = true
}

func (a *attempt) unregister() {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	if a.s != nil {
		delete(a.s.waiters, a)
	}
	a.id = ""
}

// tell lets those waiters look at their locks.
func (s *session) tell(which func(*attempt) bool) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	for a := range s.waiters {
		if which(a) {
			select {
			case a.told <- struct{}{}:
			default:
			}
		}
	}
}

// watch tells waiters of their locks, as long as there are any.
func (s *session) watch(ctx context.Context) {
	var index uint64
	for looked := time.Now(); s.waited() && ctx.Err() == nil; {
		next, err := s.listen(ctx, index)
		if index = next; err != nil {
			base.Pause(ctx, 100*time.Millisecond)
		}
		if time.Since(looked) >= lookEvery {
			looked = time.Now()
			s.look(ctx)
		}
	}
}

// waited reports whether anybody waits, and else ends the watch.
func (s *session) waited() bool {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.watching = len(s.waiters) > 0 && !s.ended()
	return s.watching
}

// listen waits until a mark is set or removed after this index; zero: it does not wait. It returns the
// next one.
func (s *session) listen(ctx context.Context, index uint64) (uint64, error) {
	all := s.b.marks(s.id + "/")
	if index == 0 { // without a key here each write of the datacenter would end the query
		if _, err := s.b.txn(ctx, hold(all, s.id, nil)); err != nil {
			return 0, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, lookEvery+lookEvery/16+s.b.opt.CallTimeout)
	defer cancel()
	marked, meta, err := s.b.client.KV().Keys(all, "", (&api.QueryOptions{WaitIndex: index, WaitTime: lookEvery}).WithContext(ctx))
	if err != nil {
		return 0, err
	}
	s.tell(func(a *attempt) bool { return slices.Contains(marked, s.b.marks(a.id)) })
	if meta.LastIndex < index {
		return 0, nil
	}
	return meta.LastIndex, nil
}

// look looks whether any lock that the session's waiters want is free. It gives that to the first
// waiter; if there is none, those of the session have lost their places.
func (s *session) look(ctx context.Context) {
	wanted := map[string]*api.KVTxnOp{}
	s.tell(func(a *attempt) bool { wanted[a.lock] = get(a.lock); return false })
	for some := range slices.Chunk(slices.Collect(maps.Values(wanted)), mostLooks) {
		found, err := s.b.txn(ctx, some...)
		for _, op := range some {
			if err != nil || isHeld(found[op.Key]) {
				continue
			}
			switch st, err := s.b.read(ctx, op.Key); {
			case err != nil || isHeld(st.lock):
			case len(st.waiters) > 0:
				_ = s.b.pass(ctx, st) // the next look does it
			default:
				s.tell(func(a *attempt) bool { return a.lock == op.Key })
			}
		}
	}
}
