package consul

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// A waiter waits for a lock in a session. All waiters of a session share one open query: for the marks
// of those that got their locks.
type waiter struct {
	number uint64
	lock   string
	told   chan struct{} // has a value when it may have its lock, or has no place any more
}

// lookEvery is how often a backend looks whether locks that its waiters want are free, since a
// session has ended, or because another program freed them.
const lookEvery = 2 * time.Second

// mostLooks is how many locks one request looks at.
const mostLooks = 64

func (b *Backend) marks(session string) string { return b.root() + "m/" + session + "/" }

// mark is the key that says that a waiter got its lock.
func (s *session) mark(number uint64) string {
	return s.b.marks(s.id) + strconv.FormatUint(number, 10)
}

// place is where the attempt waits.
func (a *attempt) place() string {
	return a.b.queue(a.lock) + a.s.id + "." + strconv.FormatUint(a.w.number, 10)
}

// register makes the attempt a waiter of its session.
func (a *attempt) register() error {
	s := a.s
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if !s.watching {
		if !s.b.calls.Go(s.watch) {
			return driver.ErrClosed
		}
		s.watching = true
	}
	s.number++
	a.w = &waiter{number: s.number, lock: a.lock, told: make(chan struct{}, 1)}
	s.waiters[s.number] = a.w
	return nil
}

func (a *attempt) unregister() {
	if a.w != nil {
		a.s.b.mu.Lock()
		defer a.s.b.mu.Unlock()
		delete(a.s.waiters, a.w.number)
		a.w = nil
	}
}

// tell lets those waiters look at their locks.
func (s *session) tell(which func(*waiter) bool) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	for _, w := range s.waiters {
		if which(w) {
			select {
			case w.told <- struct{}{}:
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
	all := s.b.marks(s.id)
	if index == 0 { // without a key here each write of the datacenter would end the query
		if _, err := s.b.txn(ctx, hold(all, s.id, nil)); err != nil {
			return 0, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, lookEvery+lookEvery/16+s.b.opt.CallTimeout)
	defer cancel()
	keys, meta, err := s.b.client.KV().Keys(all, "", (&api.QueryOptions{WaitIndex: index, WaitTime: lookEvery}).WithContext(ctx))
	if err != nil {
		return 0, err
	}
	marked := map[string]bool{}
	for _, key := range keys {
		marked[strings.TrimPrefix(key, all)] = true
	}
	s.tell(func(w *waiter) bool { return marked[strconv.FormatUint(w.number, 10)] })
	if meta.LastIndex < index {
		return 0, nil
	}
	return meta.LastIndex, nil
}

// look looks whether any lock that the session's waiters want is free. It gives that to the first
// waiter; if there is none, those of the session have lost their places.
func (s *session) look(ctx context.Context) {
	wanted := map[string]bool{}
	s.tell(func(w *waiter) bool { wanted[w.lock] = true; return false })
	var ops []*api.KVTxnOp
	for lock := range wanted {
		ops = append(ops, get(lock))
	}
	for some := range slices.Chunk(ops, mostLooks) {
		a, err := s.b.txn(ctx, some...)
		for _, op := range some {
			if p := a[op.Key]; err != nil || p != nil && p.Session != "" {
				continue
			}
			if st, err := s.b.read(ctx, op.Key); err == nil && !st.held() && len(st.waiters) > 0 {
				_ = s.b.pass(ctx, st) // the next look does it
			} else if err == nil && !st.held() {
				s.tell(func(w *waiter) bool { return w.lock == op.Key })
			}
		}
	}
}
