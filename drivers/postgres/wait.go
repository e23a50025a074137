package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// wait blocks in pg_advisory_lock on a connection of its own. The server's line is
// first come, first served; this process stands in it once for a key, and its other
// callers queue here.
func (b *Backend) wait(ctx context.Context, c *claim, ttl time.Duration, seen *driver.HeldError) (*lease, error) {
	turn := b.table.enter(c.id)
	defer b.table.quit(c.id, turn)
	select {
	case <-turn:
	default:
		select {
		case <-turn:
		case <-ctx.Done():
			return nil, b.waited(ctx, c, seen)
		case <-b.ctx.Done():
			return nil, driver.ErrClosed
		}
	}
	for warned := false; ; {
		s, err := b.waiter(ctx)
		switch {
		case ctx.Err() != nil:
			if s != nil {
				s.free()
			}
			return nil, b.waited(ctx, c, seen)
		case err != nil:
			return nil, err
		case s != nil:
			l, err := s.waitFor(ctx, c, ttl)
			if err != nil && ctx.Err() != nil {
				return nil, b.waited(ctx, c, seen)
			}
			return l, err
		}
		// All that may wait are waiting, or carry what they waited for: poll, so that
		// a free key is not out of reach.
		if !warned {
			warned = true
			b.report(driver.Notice{Kind: driver.NoticeDegraded, Key: c.key, Detail: fmt.Sprintf("all %d connections for waiting are taken (max_waiters): polling", b.opt.MaxWaiters)})
		}
		if l, err := b.poll(ctx, c, ttl); l != nil || err != nil {
			if err != nil && ctx.Err() != nil {
				err = b.waited(ctx, c, seen)
			}
			return l, err
		}
	}
}

// poll tries once, after a pause.
func (b *Backend) poll(ctx context.Context, c *claim, ttl time.Duration) (*lease, error) {
	timer := time.NewTimer(20*time.Millisecond + rand.N(30*time.Millisecond))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-b.ctx.Done():
		return nil, driver.ErrClosed
	}
	l, err := b.try(ctx, c, ttl)
	if errors.Is(err, driver.ErrHeld) && ctx.Err() == nil {
		return nil, nil
	}
	return l, err
}

// waited is the error of a wait that ended with its context, for a holder that was
// seen. Who waited at once asks now.
func (b *Backend) waited(ctx context.Context, c *claim, seen *driver.HeldError) error {
	if seen == nil && !b.closing() {
		seen = b.holder(ctx, c)
	}
	if seen == nil {
		return fmt.Errorf("postgres: %w", ctx.Err())
	}
	return fmt.Errorf("postgres: %w: %w", ctx.Err(), seen)
}

// holder tries once more, for its verdict alone, and briefly, since the caller is
// about to go.
func (b *Backend) holder(ctx context.Context, c *claim) *driver.HeldError {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 50*time.Millisecond)
	defer cancel()
	l, err := b.try(ctx, c, minTTL)
	var seen *driver.HeldError
	if err == nil {
		l.s.mu.Lock()
		l.s.unlock(l)
		l.s.flush()
		l.s.mu.Unlock()
	}
	errors.As(err, &seen)
	return seen
}

// hot remembers the keys that had to be waited for a moment ago: the next who may wait
// for one does so at once, and spares the attempt.
type hot struct {
	mu   sync.Mutex
	keys map[int64]time.Time
}

const (
	hotFor  = time.Second
	hotKeys = 1024
)

func (h *hot) note(id int64, waited bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !waited {
		delete(h.keys, id)
		return
	}
	if len(h.keys) >= hotKeys {
		clear(h.keys)
	}
	h.keys[id] = time.Now()
}

func (h *hot) is(id int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok := h.keys[id]
	return ok && time.Since(at) < hotFor
}

// free gives a reserved connection back.
func (s *session) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = false
	s.flush()
}

// waitFor waits on a reserved connection. A cancelled wait may have been granted, so
// that its connection goes.
func (s *session) waitFor(ctx context.Context, c *claim, ttl time.Duration) (*lease, error) {
	o := newOp()
	o.claim, o.ttl = c, ttl
	name := stWait
	if c.mode == driver.Shared {
		name = stWaitS
	}
	s.mu.Lock()
	reads := s.borrow()
	if reads && s.armed { // who waits long sets it again at the end
		s.armed = false
		s.alarm.Stop()
	}
	o.late = s.late
	// If nobody confirms the grant in time the server takes it back. It is told so in a
	// message of its own: what one statement sets is undone if the statement is cancelled,
	// and a lock that was granted at that moment stays.
	s.send(s.tell(unconfirmed), (&statement{name: name, id: c.id, blocks: true, do: (*session).waitEnded}).of(o))
	s.mu.Unlock()
	if !s.answer(ctx, o, reads, forever) {
		s.mu.Lock()
		s.fail(fmt.Errorf("postgres: %w", ctx.Err()), false)
		s.mu.Unlock()
		return nil, ctx.Err()
	}
	if o.err == nil {
		s.b.settle(s)
	}
	s.free()
	return o.lease, o.err
}

// waitEnded takes the answer to a wait, the token. When the lock was granted nobody
// knows: the lease counts from the round trip that confirms it, which is as cheap as can
// be, since everybody else waits for it too.
func (s *session) waitEnded(st *statement) {
	o := st.ops[0]
	switch {
	case st.err != nil: // and the lock may be there all the same
		s.refuse(o, st.err)
		s.fail(fmt.Errorf("postgres: a wait ended: %w", st.err), false)
		return
	case len(st.values) != 1 || st.values[0] <= 0:
		s.failUnanswered(st.ops)
		s.fail(errors.New("postgres: a wait ended without a token"), false)
		return
	}
	o.asked, o.token = st.sent, st.values[0]
	confirm := s.tell(classOf(o.ttl))
	confirm.do = (*session).confirmed
	s.send(confirm.of(o))
}

func (s *session) confirmed(st *statement) {
	o := st.ops[0]
	s.class = st.class
	l := s.grant(o.claim, o.ttl, o.token, st.sent)
	s.b.table.granted(o.claim, false)
	o.lease = l
	now := time.Now()
	s.b.hot.note(o.claim.id, st.sent.Sub(o.asked) > 2*now.Sub(st.sent))
	if !now.Before(driver.Expires(st.sent, o.ttl)) {
		s.unlock(l)
		o.lease = nil
		o.finish(errTimeout)
		return
	}
	o.finish(nil)
}
