package interop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/valkeygo"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A locker takes a lock with one library. ok is false if another client has it.
type locker struct {
	name string
	try  func(ctx context.Context, key string) (unlock func() error, ok bool, err error)
}

const ttl = 30 * time.Second

func ours(name string, b driver.Backend) locker {
	var mu sync.Mutex
	n := 0
	return locker{name, func(ctx context.Context, key string) (func() error, bool, error) {
		mu.Lock()
		n++
		owner := fmt.Sprintf("%s/%d", name, n)
		mu.Unlock()
		l, err := b.Acquire(ctx, &driver.Request{Key: key, Owner: owner, TTL: ttl})
		if errors.Is(err, driver.ErrHeld) {
			return nil, false, nil
		}
		if err != nil {
			return nil, false, err
		}
		return func() error { return l.Release(context.Background()) }, true, nil
	}}
}

func viaRedsync(c redis.UniversalClient) locker {
	rs := redsync.New(redsyncgoredis.NewPool(c))
	return locker{"redsync", func(ctx context.Context, key string) (func() error, bool, error) {
		m := rs.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(1))
		err := m.TryLockContext(ctx)
		var taken *redsync.ErrTaken
		if errors.As(err, &taken) {
			return nil, false, nil
		}
		if err != nil {
			return nil, false, err
		}
		return func() error {
			if ok, err := m.Unlock(); !ok || err != nil {
				return fmt.Errorf("redsync could not unlock: %v, %w", ok, err)
			}
			return nil
		}, true, nil
	}}
}

func viaRedislock(c redis.UniversalClient) locker {
	client := redislock.New(c)
	return locker{"redislock", func(ctx context.Context, key string) (func() error, bool, error) {
		l, err := client.Obtain(ctx, key, ttl, nil)
		if errors.Is(err, redislock.ErrNotObtained) {
			return nil, false, nil
		}
		if err != nil {
			return nil, false, err
		}
		return func() error { return l.Release(context.Background()) }, true, nil
	}}
}

// byHand is the simple lock that many programs write themselves.
func byHand(v valkey.Client) locker {
	return locker{"SET NX PX", func(ctx context.Context, key string) (func() error, bool, error) {
		err := v.Do(ctx, v.B().Set().Key(key).Value("by hand").Nx().Px(ttl).Build()).Error()
		if valkey.IsValkeyNil(err) {
			return nil, false, nil
		}
		unlock := func() error { return v.Do(context.Background(), v.B().Del().Key(key).Build()).Error() }
		return unlock, err == nil, err
	}}
}

func lockers(t *testing.T, kind server.Kind) []locker {
	s := server.StartFor(t, kind)
	r := redis.NewClient(&redis.Options{Addr: s.Addr()})
	t.Cleanup(func() { _ = r.Close() })
	v, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{s.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	overRedis, err := goredis.New(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = overRedis.Close() })
	overValkey, err := valkeygo.New(v, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = overValkey.Close() })
	return []locker{ours("goredis", overRedis), ours("valkeygo", overValkey), viaRedsync(r), viaRedislock(r), byHand(v)}
}

func TestLocksOfAllLibrariesExcludeEachOther(t *testing.T) {
	for _, kind := range []server.Kind{server.KindRedis, server.KindValkey} {
		t.Run(string(kind), func(t *testing.T) {
			all := lockers(t, kind)
			ctx := context.Background()
			for _, holder := range all {
				key := "job of " + holder.name
				unlock, ok, err := holder.try(ctx, key)
				if !ok || err != nil {
					t.Fatalf("%s on a free key: %v, %v", holder.name, ok, err)
				}
				for _, other := range all {
					if _, ok, err := other.try(ctx, key); ok || err != nil {
						t.Errorf("%s while %s holds the lock: %v, %v", other.name, holder.name, ok, err)
					}
				}
				if err := unlock(); err != nil {
					t.Fatal(err)
				}
				for _, other := range all {
					unlock, ok, err := other.try(ctx, key)
					if !ok || err != nil {
						t.Errorf("%s after %s released: %v, %v", other.name, holder.name, ok, err)
						continue
					}
					if err := unlock(); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

// All libraries increment a counter under one lock, and no increment is lost.
func TestOneCounterUnderTheLocksOfAllLibraries(t *testing.T) {
	all := lockers(t, server.KindRedis)
	const each = 40
	counter, inside := 0, make(chan struct{}, 1)
	var wg sync.WaitGroup
	for _, l := range all {
		wg.Go(func() {
			for done := 0; done < each; {
				unlock, ok, err := l.try(context.Background(), "counter")
				if err != nil {
					t.Errorf("%s: %v", l.name, err)
					return
				}
				if !ok {
					<-time.After(time.Millisecond)
					continue
				}
				select {
				case inside <- struct{}{}:
				default:
					t.Errorf("%s holds the lock together with another", l.name)
					return
				}
				counter++
				done++
				<-inside
				if err := unlock(); err != nil {
					t.Errorf("%s: %v", l.name, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if want := each * len(all); counter != want {
		t.Errorf("the counter ends at %d, want %d", counter, want)
	}
}
