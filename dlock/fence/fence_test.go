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

func TestTokenRefusesNoneAndEnded(t *testing.T) {
	locks := client()
	defer locks.Close()
	lease, err := locks.Lock(t.Context(), "k", dlock.WithMaxHold(time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := lease.Context(t.Context())
	defer cancel()
	if _, err := fence.Token(ctx, "other"); !errors.Is(err, dlock.ErrInvalid) {
		t.Errorf("under another key's lock: %v", err)
	}
	<-lease.Done()
	if _, err := fence.Token(ctx, "k"); !errors.Is(err, dlock.ErrLost) {
		t.Errorf("after the end: %v", err)
	}
	none, err := dlock.New(memory.New(&memory.Options{Info: driver.Info{Name: "none", MinTTL: driver.MinTTL, MaxTTL: time.Hour}}))
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close()
	err = dlock.Do(t.Context(), none, "k", func(ctx context.Context) error { _, err := fence.Token(ctx, "k"); return err })
	if !errors.Is(err, dlock.ErrInvalid) {
		t.Errorf("without tokens: %v", err)
	}
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
