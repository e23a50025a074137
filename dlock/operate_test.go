package dlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

func TestLookupTellsTheHolderItsTokenAndWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		holder, other := newClient(t, b, dlock.WithOwnerLabel("holder")), newClient(t, b.Peer())
		if s, err := other.Lookup(t.Context(), "k"); err != nil || len(s.Holders) != 0 || s.Key != "k" {
			t.Errorf("a free key: %+v, %v", s, err)
		}
		l := lock(t, holder, "k")
		go func() {
			if l, err := newClient(t, b.Peer()).Lock(t.Context(), "k"); err == nil {
				_ = l.Unlock()
			}
		}()
		synctest.Wait()
		s, err := other.Lookup(t.Context(), "k")
		if err != nil || len(s.Holders) != 1 || s.Waiters != 1 {
			t.Fatalf("a held key: %+v, %v", s, err)
		}
		if h := s.Holders[0]; !strings.HasPrefix(h.Owner, "holder/") || h.Fence != l.Fence() || h.TTL <= 0 {
			t.Errorf("the holder is %+v", h)
		}
		unlock(t, l)
	})
}

func TestListYieldsWhatIsHeldUnderThePrefixUntilTheCallerStops(t *testing.T) {
	b := memory.New()
	c := newClient(t, b)
	for _, key := range []string{"a/1", "a/2", "b/1"} {
		defer unlock(t, lock(t, c, key))
	}
	var keys []string
	for s, err := range c.List(t.Context(), "a/") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, s.Key)
	}
	slices.Sort(keys)
	if !slices.Equal(keys, []string{"a/1", "a/2"}) {
		t.Errorf("List(a/) = %v", keys)
	}
	n := 0
	for range c.List(t.Context(), "") {
		n++
		break
	}
	if n != 1 {
		t.Errorf("%d keys after a break", n)
	}
	b.Fail(errOutage)
	n = 0
	for s, err := range c.List(t.Context(), "") {
		n++
		if s != nil || !errors.Is(err, dlock.ErrUnavailable) || !errors.Is(err, errOutage) {
			t.Errorf("in an outage: %v, %v", s, err)
		}
	}
	if n != 1 {
		t.Errorf("%d pairs in an outage, want the error alone", n)
	}
	b.Fail(nil)
}

// halfList yields one state and then fails.
type halfList struct{ *memory.Backend }

func (h halfList) List(_ context.Context, _ string, yield func(*driver.State) bool) error {
	yield(&driver.State{Key: "one"})
	return errOutage
}

func TestAListThatFailsAfterItsCallerStoppedSaysNothing(t *testing.T) {
	c, err := dlock.New(halfList{memory.New()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // nothing was locked
	for range c.List(t.Context(), "") {
		break // a second pair would panic
	}
}

func TestBreakTakesTheLockOfThatTokenAndOfNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		c, operator := newClient(t, b, dlock.WithOwnerLabel("stuck")), newClient(t, b.Peer())
		l := lock(t, c, "k")
		err := operator.Break(t.Context(), "k", dlock.Holder{Fence: l.Fence() - 1})
		if !errors.Is(err, dlock.ErrLost) || errors.Is(err, dlock.ErrUnavailable) || !strings.Contains(err.Error(), "held by stuck/") {
			t.Errorf("another token: got %v", err)
		}
		if err := l.Err(); err != nil {
			t.Fatal(err)
		}
		if err := operator.Break(t.Context(), "k", dlock.Holder{Fence: l.Fence()}); err != nil {
			t.Fatal(err)
		}
		next := lock(t, operator, "k")
		if next.Fence() <= l.Fence() {
			t.Errorf("the next token is %d, after %d", next.Fence(), l.Fence())
		}
		start := time.Now()
		<-l.Done()
		if took := time.Since(start); took > c.TTL()/3 || !errors.Is(l.Err(), dlock.ErrLost) {
			t.Errorf("the holder learned of it after %v: %v", took, l.Err())
		}
		if err := operator.Break(t.Context(), "k", dlock.Holder{Fence: l.Fence()}); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("the old token: got %v", err)
		}
		unlock(t, next)
		if err := operator.Break(t.Context(), "k", dlock.Holder{Fence: 1}); !errors.Is(err, dlock.ErrLost) || !strings.Contains(err.Error(), "nobody holds it") {
			t.Errorf("a free key: got %v", err)
		}
	})
}

// operations calls each of the methods for operators.
func operations(ctx context.Context, c *dlock.Client, key string) map[string]error {
	errs := map[string]error{}
	_, errs["lookup"] = c.Lookup(ctx, key)
	_, errs["check"] = c.Check(ctx)
	errs["break"] = c.Break(ctx, key, dlock.Holder{Fence: 1})
	for _, err := range c.List(ctx, "") {
		errs["list"] = err
	}
	for _, err := range c.Observe(ctx, key) {
		errs["observe"] = err
		break
	}
	return errs
}

func TestWhatABackendLacksIsErrUnsupported(t *testing.T) {
	for op, err := range operations(t.Context(), newSpyClient(t, newSpy()), "k") {
		if !errors.Is(err, errors.ErrUnsupported) || !errors.Is(err, dlock.ErrInvalid) || errors.Is(err, dlock.ErrUnavailable) {
			t.Errorf("%s: got %v, want ErrUnsupported and ErrInvalid", op, err)
		}
	}
}

func TestErrorsOfOperationsAreToldApart(t *testing.T) {
	b := memory.New()
	c := newClient(t, b)
	if found, err := c.Check(t.Context()); err != nil || len(found) == 0 {
		t.Errorf("Check = %v, %v", found, err)
	}
	for op, err := range operations(t.Context(), c, "") {
		if op != "check" && op != "list" && !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("%s of no key: got %v, want ErrInvalid", op, err)
		}
	}
	_, err := c.Lookup(t.Context(), strings.Repeat("k", driver.MaxKey+1))
	if !errors.Is(err, dlock.ErrInvalid) {
		t.Errorf("a long key: got %v, want ErrInvalid", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = c.Lookup(ctx, "k"); !errors.Is(err, context.Canceled) || errors.Is(err, dlock.ErrUnavailable) {
		t.Errorf("a cancelled call: got %v", err)
	}
	b.Fail(errOutage)
	for op, err := range operations(t.Context(), c, "k") {
		if !errors.Is(err, dlock.ErrUnavailable) || !errors.Is(err, errOutage) {
			t.Errorf("%s in an outage: got %v, want ErrUnavailable", op, err)
		}
	}
	b.Fail(nil)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for op, err := range operations(t.Context(), c, "k") {
		if !errors.Is(err, dlock.ErrClosed) {
			t.Errorf("%s of a closed client: got %v, want ErrClosed", op, err)
		}
	}
}
