package dlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// TestCloseInTheBodyOfAListEnds: a listing is no call that Close waits for.
func TestCloseInTheBodyOfAListEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSpyClient(t, memory.New())
		lock(t, c, "k")
		n := 0
		err := c.Backend().(driver.Inspector).List(t.Context(), "", func(*driver.State) bool {
			n++
			return c.Close() == nil
		})
		if err != nil || n != 1 {
			t.Errorf("%d keys, %v", n, err)
		}
	})
}

func TestErrorsOfLookupAreToldApart(t *testing.T) {
	_, err := newSpyClient(t, newSpy()).Lookup(t.Context(), "k")
	if !errors.Is(err, errors.ErrUnsupported) || !errors.Is(err, dlock.ErrInvalid) || errors.Is(err, dlock.ErrUnavailable) {
		t.Errorf("a backend that cannot tell: got %v, want ErrUnsupported and ErrInvalid", err)
	}
	b := memory.New()
	c := newSpyClient(t, b)
	for _, key := range []string{"", strings.Repeat("k", driver.MaxKey+1)} {
		if _, err := c.Lookup(t.Context(), key); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("a key of %d bytes: got %v, want ErrInvalid", len(key), err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Lookup(ctx, "k")
	if !errors.Is(err, context.Canceled) || errors.Is(err, dlock.ErrUnavailable) {
		t.Errorf("a cancelled call: got %v", err)
	}
	b.Fail(errOutage)
	_, err = c.Lookup(t.Context(), "k")
	var e *dlock.Error
	if !errors.Is(err, dlock.ErrUnavailable) || !errors.Is(err, errOutage) || !errors.As(err, &e) || e.Op != "lookup" || e.Key != "k" || e.Attempts != 1 {
		t.Errorf("in an outage: got %v, want ErrUnavailable", err)
	}
	b.Fail(nil)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err = c.Lookup(t.Context(), "k"); !errors.Is(err, dlock.ErrClosed) {
		t.Errorf("of a closed client: got %v, want ErrClosed", err)
	}
}
