package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/redlock-go/redlock/dlock"
	_ "github.com/redlock-go/redlock/drivers/etcd"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// The code of the documentation's pages on moving from other libraries. It is here so that it
// is compiled, and run.

// TestBeforeAndAfterExcludeEachOther runs what the pages have before and after a migration beside
// each other: never do both work.
func TestBeforeAndAfterExcludeEachOther(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: server.Redis(t).Addr()})
	t.Cleanup(func() { _ = client.Close() })
	addr := server.Etcd(t, 1).Addrs()[0]
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Close() })
	locks, err := dlock.OpenURL("etcd://" + addr + "/jobs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locks.Close() })
	for page, pair := range map[string][2]func(context.Context) error{
		"redsync":   {func(ctx context.Context) error { return withRedsync(ctx, client) }, func(ctx context.Context) error { return withDlock(ctx, client) }},
		"redislock": {func(ctx context.Context) error { return withRedislock(ctx, client) }, func(ctx context.Context) error { return withDlock(ctx, client) }},
		"etcd":      {func(ctx context.Context) error { return withConcurrency(ctx, etcd) }, func(ctx context.Context) error { return nightly(ctx, locks) }},
		"election":  {func(ctx context.Context) error { return campaign(ctx, etcd, "host") }, func(ctx context.Context) error { return elect(ctx, locks) }},
	} {
		t.Run(page, func(t *testing.T) {
			var inside atomic.Int64
			var both sync.WaitGroup
			for _, program := range pair {
				both.Go(func() {
					for range 10 {
						ctx, cancel := context.WithCancel(t.Context())
						worked := false
						ctx = context.WithValue(ctx, job{}, func() {
							if inside.Add(1) > 1 {
								t.Error("both work")
							}
							time.Sleep(5 * time.Millisecond) // what the other would run into
							inside.Add(-1)
							worked = true
							cancel() // ends the campaign
						})
						if err := program(ctx); err != nil && !errors.Is(err, context.Canceled) || !worked {
							t.Errorf("worked: %v, %v", worked, err)
						}
					}
				})
			}
			both.Wait()
		})
	}
}

// job is the key of what a test does in place of the pages' work.
type job struct{}

func work(ctx context.Context) error {
	ctx.Value(job{}).(func())()
	return nil
}

func lead(ctx context.Context, _ <-chan struct{}) { _ = work(ctx) }

func withDlock(ctx context.Context, client redis.UniversalClient) error {
	backend, err := goredis.New(client, nil) // once for the program
	if err != nil {
		return err
	}
	locks, err := dlock.New(backend)
	if err != nil {
		return err
	}
	defer locks.Close() //nolint:errcheck // an example
	return dlock.Do(ctx, locks, "nightly", work)
}

func nightly(ctx context.Context, locks *dlock.Client) error {
	return dlock.Do(ctx, locks, "nightly", work) // the context of work ends with the lease
}

func elect(ctx context.Context, locks *dlock.Client) error {
	return dlock.Elect(ctx, locks, "scheduler", work) // again after a loss; work's return resigns
}

func withRedsync(ctx context.Context, client redis.UniversalClient) error {
	rs := redsync.New(redsyncpool.NewPool(client))
	mutex := rs.NewMutex("nightly", redsync.WithExpiry(10*time.Second), redsync.WithTries(100))
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	defer mutex.UnlockContext(context.WithoutCancel(ctx)) //nolint:errcheck // an example
	return work(ctx)                                      // must take less than 10 s, unless you call mutex.ExtendContext
}

func withConcurrency(ctx context.Context, client *clientv3.Client) error {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(10))
	if err != nil {
		return err
	}
	defer session.Close() //nolint:errcheck // an example
	mutex := concurrency.NewMutex(session, "/jobs/nightly")
	if err := mutex.Lock(ctx); err != nil {
		return err
	}
	defer mutex.Unlock(context.WithoutCancel(ctx)) //nolint:errcheck // an example
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-session.Done(): // the lease has expired
			cancel()
		case <-ctx.Done():
		}
	}()
	return work(ctx)
}

func campaign(ctx context.Context, client *clientv3.Client, host string) error {
	for ctx.Err() == nil {
		session, err := concurrency.NewSession(client, concurrency.WithTTL(10))
		if err != nil {
			return err
		}
		election := concurrency.NewElection(session, "/jobs/scheduler")
		if err := election.Campaign(ctx, host); err != nil {
			return err
		}
		lead(ctx, session.Done())
		_ = session.Close()
	}
	return ctx.Err()
}

func withRedislock(ctx context.Context, client redis.UniversalClient) error {
	locker := redislock.New(client)
	lock, err := locker.Obtain(ctx, "nightly", 10*time.Second, &redislock.Options{
		RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond),
	})
	if err != nil {
		return err // redislock.ErrNotObtained, or the client's error
	}
	defer lock.Release(context.WithoutCancel(ctx)) //nolint:errcheck // an example
	return work(ctx)                               // must take less than 10 s, unless you call lock.Refresh
}
