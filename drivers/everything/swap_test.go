package everything_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/fence"
	_ "github.com/redlock-go/redlock/drivers/everything"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// marks is a store that keeps the largest token it has seen.
type marks struct{ seen atomic.Uint64 }

func (m *marks) Raise(_ context.Context, _ string, token uint64) (uint64, error) {
	for {
		old := m.seen.Load()
		if token <= old || m.seen.CompareAndSwap(old, token) {
			return max(old, token), nil
		}
	}
}

// job is the program: the same for every URL. It runs one at a time, and its store accepts its
// token.
func job(ctx context.Context, url string, store fence.Store) (token uint64, err error) {
	locks, err := dlock.OpenURL(url, dlock.WithLogger(nil))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, locks.Close()) }()
	err = dlock.Do(ctx, locks, "reports/2026-11", func(ctx context.Context) error {
		if token, err = fence.Token(ctx, "reports/2026-11"); err != nil {
			return err
		}
		if _, err := locks.TryLock(ctx, "reports/2026-11"); !errors.Is(err, dlock.ErrHeld) {
			return errors.Join(errors.New("a second one was not refused"), err)
		}
		return fence.Check(ctx, store, "reports", token)
	})
	return token, err
}

// TestOneProgramManyURLs runs one job under every kind of backend, in turns, with one store:
// what the store accepted under one backend is not above what the next one gives.
func TestOneProgramManyURLs(t *testing.T) {
	redis := server.Redis(t)
	nodes := make([]string, 3)
	for i := range nodes {
		nodes[i] = server.Valkey(t).URL()
	}
	file, quorum := "file://"+t.TempDir(), "redlock:"+strings.Join(nodes, ",")+",bootstrap=true"
	etcd := "etcd://" + strings.Join(server.Etcd(t, 3).Addrs(), ",")
	store := &marks{}
	// There and back. The way back leaves PostgreSQL out, whose tokens may lag by some seconds.
	for _, url := range []string{file, redis.URL(), quorum, server.Postgres(t).URL(), etcd, quorum, redis.URL(), file} {
		scheme, _, _ := strings.Cut(url, ":")
		token, err := job(t.Context(), url, store)
		for errors.Is(err, dlock.ErrUnavailable) { // the machine is busy
			token, err = job(t.Context(), url, store)
		}
		if err != nil {
			t.Fatalf("%s: %v", scheme, err)
		}
		for time.Now().UnixMicro() <= int64(store.seen.Load()) { // a token may be ahead of the clock by a little
			runtime.Gosched()
		}
		t.Logf("%-10s token %d, %v old", scheme, token, time.Since(time.UnixMicro(int64(token))).Round(time.Millisecond))
	}
}
