package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres/internal/claims"
	"github.com/redlock-go/redlock/drivers/postgres/internal/session"
)

// A slice stays below the server's deadlock_timeout, 1 s by default, after which every wait is
// examined and may be logged. It is as long as that permits, because waiters are served in the
// order of the server's queue only within a slice. It is short if more keys are waited for than
// there are connections.
const (
	longSlice  = 850 * time.Millisecond
	shortSlice = 200 * time.Millisecond
)

// wait waits in the server's queue. Of the callers for one key, which are served in the order
// of their arrival, only the first waits there.
func (b *Backend) wait(ctx context.Context, c *claims.Claim, ttl time.Duration, seen *driver.HeldError) (*session.Lease, error) {
	place := b.table.Enter(c)
	defer b.table.Quit(c.Number, place)
	c.Waiting = true
	select {
	case <-place.First:
	case <-ctx.Done():
		return nil, b.waited(ctx, c, seen)
	case <-b.ctx.Done():
		return nil, driver.ErrClosed
	}
	l, err := b.waitFirst(ctx, c, ttl)
	if err != nil && ctx.Err() != nil {
		return nil, b.waited(ctx, c, seen)
	}
	return l, err
}

// waitFirst waits on a connection for waiting, and polls while it has none.
func (b *Backend) waitFirst(ctx context.Context, c *claims.Claim, ttl time.Duration) (*session.Lease, error) {
	r := b.want()
	defer func() { b.unwant(r) }()
	for warned := false; ; {
		timer := time.NewTimer(untilPoll())
		select {
		case s := <-r.ready:
			timer.Stop()
			l, err := b.waitFor(ctx, s, c, ttl)
			if l != nil || err != nil {
				return l, err
			}
			r = b.want() // behind the other callers that want one
			continue
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("postgres: %w", ctx.Err())
		case <-b.ctx.Done():
			timer.Stop()
			return nil, driver.ErrClosed
		}
		if full := b.offer(); full && !warned {
			warned = true
			b.report(driver.Notice{Kind: driver.NoticeDegraded, Key: c.Key, Detail: fmt.Sprintf("more keys are waited for than there are connections for waiting (max_waiters=%d): keys without one are polled", b.opt.MaxWaiters)})
		}
		if l, err := b.try(ctx, c, ttl); !errors.Is(err, driver.ErrHeld) {
			return l, err
		}
	}
}

// pollEvery is the interval at which callers without a connection for waiting poll, all of a
// process at the same time, so that they share one statement.
const pollEvery = 25 * time.Millisecond

func untilPoll() time.Duration { return pollEvery - time.Duration(time.Now().UnixNano())%pollEvery }

// waited returns the error of a wait that ended with its context. It includes the holder that
// was seen. A caller that began to wait without an attempt makes one now.
func (b *Backend) waited(ctx context.Context, c *claims.Claim, seen *driver.HeldError) error {
	if seen == nil && !b.closing() {
		seen = b.holder(ctx, c)
	}
	if seen == nil {
		return fmt.Errorf("postgres: %w", ctx.Err())
	}
	return fmt.Errorf("postgres: %w: %w", ctx.Err(), seen)
}

// holder tries once more to learn the holder, and only briefly, because the caller's context
// has ended.
func (b *Backend) holder(ctx context.Context, c *claims.Claim) *driver.HeldError {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 50*time.Millisecond)
	defer cancel()
	l, err := b.try(ctx, c, session.MinTTL)
	var seen *driver.HeldError
	if err == nil {
		l.GiveBack()
	}
	errors.As(err, &seen)
	return seen
}

// waitFor waits on a reserved connection, until the lock is granted or ctx ends. If another
// caller wants the connection it returns nil and nil between two slices.
func (b *Backend) waitFor(ctx context.Context, s *session.Session, c *claims.Claim, ttl time.Duration) (*session.Lease, error) {
	for {
		length := longSlice
		if b.wanted() {
			length = shortSlice
		}
		l, err := s.Slice(ctx, c, ttl, length+rand.N(length/10))
		switch {
		case l != nil:
			b.settle(s)
			return l, nil
		case err != nil:
			return nil, err
		case b.wanted():
			s.Free()
			return nil, nil
		}
	}
}
