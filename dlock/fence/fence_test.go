package fence_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/fence"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// marks is a Store whose answers a test sets.
type marks func(token uint64) (uint64, error)

func (m marks) Raise(_ context.Context, _ string, token uint64) (uint64, error) { return m(token) }

func TestCheckComparesTokens(t *testing.T) {
	broken := errors.New("connection refused")
	store := marks(func(token uint64) (uint64, error) {
		switch token {
		case 1:
			return 0, broken
		case 2:
			return 1, nil // a store that forgets to raise
		}
		return max(token, 5), nil
	})
	for token, want := range map[uint64]error{
		0:                   dlock.ErrInvalid,
		1:                   broken,
		4:                   fence.ErrStale,
		5:                   nil,
		6:                   nil,
		driver.MaxFence + 1: dlock.ErrInvalid,
	} {
		if err := fence.Check(t.Context(), store, "r", token); !errors.Is(err, want) {
			t.Errorf("token %d: got %v, want %v", token, err, want)
		}
	}
	if err := fence.Check(t.Context(), store, "r", 2); err == nil {
		t.Error("a store that does not raise its mark passes")
	}
	var stale *fence.StaleError
	err := fence.Check(t.Context(), store, "r", 4)
	if !errors.As(err, &stale) || stale.Resource != "r" || stale.Token != 4 || stale.Seen != 5 {
		t.Errorf("got %+v", stale)
	}
}

// tokenless is memory without tokens.
type tokenless struct{ driver.Backend }

type tokenlessLease struct{ driver.Lease }

func (l tokenlessLease) Grant() driver.Grant {
	g := l.Lease.Grant()
	g.Fence = 0
	return g
}

func (b tokenless) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	l, err := b.Backend.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	return tokenlessLease{l}, nil
}

func TestTokenRefusesNoneAndEnded(t *testing.T) {
	b := memory.New()
	locks, err := dlock.New(b, dlock.WithLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close() //nolint:errcheck // the test is over
	if _, err := fence.Token(t.Context(), "k"); !errors.Is(err, dlock.ErrInvalid) {
		t.Errorf("outside of a lock: %v", err)
	}
	err = dlock.Do(t.Context(), locks, "k", func(ctx context.Context) error {
		if token, err := fence.Token(ctx, "k"); err != nil || token == 0 {
			t.Errorf("under the lock: %d, %v", token, err)
		}
		if _, err := fence.Token(ctx, "other"); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("under another key's lock: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := locks.Lock(t.Context(), "k", dlock.WithMaxHold(time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := lease.Context(t.Context())
	defer cancel()
	<-lease.Done()
	if _, err := fence.Token(ctx, "k"); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("after the end: %v", err)
	}
	none, err := dlock.New(tokenless{memory.New()})
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close() //nolint:errcheck // the test is over
	_ = dlock.Do(t.Context(), none, "k", func(ctx context.Context) error {
		if _, err := fence.Token(ctx, "k"); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("without tokens: %v", err)
		}
		return nil
	})
}

func TestOnlyTheRefusalOfTheScriptIsStale(t *testing.T) {
	for text, stale := range map[string]bool{
		"STALE 7 is the largest token seen":              true,
		"call failed: STALE 7 is the largest token seen": true,
		"STALE nothing": false,
		"ERR fence: ARGV[1] must be a fencing token":         false,
		"READONLY You can't write against a read only slave": false,
	} {
		in := errors.New(text)
		err := fence.RedisError(in, "r", 5)
		if errors.Is(err, fence.ErrStale) != stale || !stale && err != in { //nolint:errorlint // the very error
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := fence.RedisError(nil, "r", 5); err != nil {
		t.Error(err)
	}
}
