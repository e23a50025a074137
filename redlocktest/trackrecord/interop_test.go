package trackrecord

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	_ "github.com/redlock-go/redlock/drivers/goredis"
	_ "github.com/redlock-go/redlock/drivers/valkeygo"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A locker takes a lock with one library.
type locker struct {
	name string
	try  func(key string) (unlock func() error, err error) // the error is ErrHeld if another has it
}

// lockers are locks of all libraries on one server: ours, others, and the one that many programs write
// themselves.
func lockers(t *testing.T, kind server.Kind) (all []locker) {
	addr := server.StartFor(t, kind).Addr()
	for _, scheme := range []string{"redis", "valkey", "redsync", "redislock"} {
		b, err := dlock.OpenBackend(scheme + "://" + addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		all = append(all, locker{scheme, func(key string) (func() error, error) {
			l, err := b.Acquire(context.Background(), &driver.Request{Key: key, Owner: rand.Text(), TTL: 30 * time.Second})
			return func() error { return l.Release(context.Background()) }, err
		}})
	}
	v, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return append(all, locker{"SET NX PX", func(key string) (func() error, error) {
		err := v.Do(context.Background(), v.B().Set().Key(key).Value("by hand").Nx().Px(30*time.Second).Build()).Error()
		if valkey.IsValkeyNil(err) {
			err = driver.ErrHeld
		}
		return func() error { return v.Do(context.Background(), v.B().Del().Key(key).Build()).Error() }, err
	}})
}

func TestLocksOfAllLibrariesExcludeEachOther(t *testing.T) {
	for _, kind := range []server.Kind{server.KindRedis, server.KindValkey} {
		t.Run(string(kind), func(t *testing.T) {
			all := lockers(t, kind)
			for _, holder := range all {
				key := "job of " + holder.name
				unlock, err := holder.try(key)
				if err != nil {
					t.Fatalf("%s on a free key: %v", holder.name, err)
				}
				for _, other := range all {
					if _, err := other.try(key); !errors.Is(err, driver.ErrHeld) {
						t.Errorf("%s while %s holds the lock: %v", other.name, holder.name, err)
					}
				}
				if err := unlock(); err != nil {
					t.Fatal(err)
				}
				for _, other := range all {
					unlock, err := other.try(key)
					if err == nil {
						err = unlock()
					}
					if err != nil {
						t.Errorf("%s after %s released: %v", other.name, holder.name, err)
					}
				}
			}
		})
	}
}

// TestOneCounterUnderTheLocksOfAllLibraries: all increment it, and no increment is lost.
func TestOneCounterUnderTheLocksOfAllLibraries(t *testing.T) {
	all := lockers(t, server.KindRedis)
	const each = 40
	counter, inside := 0, make(chan struct{}, 1)
	var wg sync.WaitGroup
	for _, l := range all {
		wg.Go(func() {
			for done := 0; done < each; {
				unlock, err := l.try("counter")
				if errors.Is(err, driver.ErrHeld) {
					<-time.After(time.Millisecond)
					continue
				}
				if err == nil {
					select {
					case inside <- struct{}{}:
					default:
						t.Errorf("%s holds the lock together with another", l.name)
						return
					}
					counter++
					done++
					<-inside
					err = unlock()
				}
				if err != nil {
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
