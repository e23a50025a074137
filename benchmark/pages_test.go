package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// The code of the documentation's pages on moving from other libraries. It is here so that it
// is compiled.

var _ = []any{withRedsync, withRedislock, withConcurrency, campaign}

func work(ctx context.Context) error { return ctx.Err() }

func lead(ctx context.Context, done <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-done:
	}
}

func withRedsync(ctx context.Context, client redis.UniversalClient) error {
	rs := redsync.New(goredis.NewPool(client))
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
		election := concurrency.NewElection(session, "/scheduler")
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
