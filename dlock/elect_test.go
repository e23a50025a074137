package dlock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/memory"
)

// It campaigns again whatever lead returns; its own return, of a valid lease, resigns and is returned.
func TestALeaderThatLostItsLeaseCampaignsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		terms := 0
		var tokens []uint64
		c, fatal := newSpyClient(t, b), errors.New("fatal")
		err := dlock.Elect(t.Context(), c, "k", func(ctx context.Context) error {
			l, _ := dlock.LeaseFor(ctx, "k")
			tokens = append(tokens, l.Fence())
			if terms++; terms == 4 {
				return fatal
			}
			b.Expire("k")
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), dlock.ErrLost) {
				t.Errorf("term %d ended with %v", terms, context.Cause(ctx))
			}
			return [...]error{nil, ctx.Err(), errOutage}[terms-1] // it does not matter
		})
		if err != fatal || terms != 4 { //nolint:errorlint // the very error
			t.Errorf("%d terms: %v", terms, err)
		}
		unlock(t, lock(t, newSpyClient(t, b.Peer()), "k"))
		if !slices.IsSorted(tokens) || len(slices.Compact(tokens)) != 4 {
			t.Errorf("tokens %v do not rise", tokens)
		}
	})
}

func TestTheEndOfItsContextEndsACampaignAndALeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		stopped := errors.New("stopped in order")
		wg.Go(func() {
			err := dlock.Elect(ctx, newSpyClient(t, b), "k", func(ctx context.Context) error {
				<-ctx.Done()
				return stopped
			})
			if err != stopped { //nolint:errorlint // the very error
				t.Errorf("the leader: %v", err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			err := dlock.Elect(ctx, newSpyClient(t, b.Peer()), "k", func(ctx context.Context) error { return ctx.Err() })
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the candidate: %v", err)
			}
		})
		wg.Wait()
		err := dlock.Elect(t.Context(), newSpyClient(t, b.Peer()), "", func(context.Context) error { return nil })
		if !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("an impossible campaign: %v", err)
		}
	})
}

// candidate is a process that is cut off, dies or resigns.
type candidate struct {
	b      *memory.Backend
	cancel context.CancelFunc
}

// Twenty candidates over five minutes, whose leader is cut off, or killed, or resigns.
func TestThereAreNeverTwoLeadersAndAlwaysSoonOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 3 * time.Second
		space := memory.New()
		var (
			mu      sync.Mutex
			leading []*dlock.Lease
			leader  *candidate
			resign  chan struct{}
			since   time.Time // when the last leader ended; zero: one leads
			bound   time.Duration
			terms   int
		)
		lead := func(me *candidate) func(context.Context) error {
			return func(ctx context.Context) error {
				l, _ := dlock.LeaseFor(ctx, "k")
				mu.Lock()
				for _, other := range leading {
					if d, _ := other.Deadline(); other.Err() == nil && time.Now().Before(d) {
						t.Errorf("token %d leads while %d does", l.Fence(), other.Fence())
					}
				}
				leading = append(leading[:0], l)
				if took := time.Since(since); !since.IsZero() && took > bound {
					t.Errorf("takeover took %v, more than %v", took, bound)
				}
				leader, terms, since = me, terms+1, time.Time{}
				resign = make(chan struct{})
				quit := resign
				mu.Unlock()
				select {
				case <-quit:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		enter := func() {
			me := &candidate{b: space.Peer()}
			own, cancel := context.WithCancel(ctx)
			me.cancel = cancel
			c := newSpyClient(t, me.b)
			wg.Go(func() {
				for own.Err() == nil {
					_ = dlock.Elect(own, c, "k", lead(me), dlock.WithTTL(ttl))
				}
			})
		}
		for range 20 {
			enter()
		}
		for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
			time.Sleep(time.Duration(5+rand.IntN(5)) * time.Second)
			ends := rand.IntN(3)
			mu.Lock()
			old := leader
			since, bound = time.Now(), ttl
			if ends == 0 && old != nil { // it resigns, and campaigns again
				bound = 0
				close(resign)
			}
			mu.Unlock()
			if old == nil {
				t.Fatal("nobody leads")
			}
			if ends == 0 {
				continue
			}
			old.b.Fail(errOutage) // it is cut off for a while
			if ends == 2 {        // or dies with its lock
				old.cancel()
			}
			time.Sleep(4 * time.Second)
			old.b.Fail(nil) // for its Close, too
			if ends == 2 {
				enter()
			}
		}
		stop()
		wg.Wait()
		if terms < 20 {
			t.Errorf("%d terms in five minutes", terms)
		}
	})
}

// TestElectAndSlotsBesideReaders: a candidate waits for readers, as any writer does, and is none itself.
// Slot 0 is the lock of the key's own name, so a reader of the key keeps out that slot alone.
func TestElectAndSlotsBesideReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		readers, c := newSpyClient(t, b), newSpyClient(t, b.Peer())
		never := func(context.Context) error { t.Error("it leads"); return nil }
		if err := dlock.Elect(t.Context(), c, "k", never, dlock.WithShared()); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("with WithShared Elect gives %v", err)
		}
		one, two := lock(t, readers, "k", dlock.WithShared()), lock(t, readers, "k", dlock.WithShared())
		leads := make(chan struct{})
		var elected sync.WaitGroup
		elected.Go(func() {
			if err := dlock.Elect(t.Context(), c, "k", func(context.Context) error { close(leads); return nil }); err != nil {
				t.Error(err)
			}
		})
		unlock(t, one)
		synctest.Wait()
		select {
		case <-leads:
			t.Error("it leads beside a reader")
		default:
		}
		unlock(t, two)
		elected.Wait()

		reader := lock(t, readers, "s", dlock.WithShared())
		slot := lock(t, c, "s", dlock.WithSlots(2))
		if slot.Slot() != 1 {
			t.Errorf("slot %d beside a reader", slot.Slot())
		}
		if _, err := c.TryLock(t.Context(), "s", dlock.WithSlots(2)); !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("slot 0 beside a reader: %v", err)
		}
		unlock(t, reader)
		unlock(t, slot)
	})
}
