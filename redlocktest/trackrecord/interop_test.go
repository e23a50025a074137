package trackrecord

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

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

const ttl = 30 * time.Second

// lockers are locks of all libraries on one server: ours, others, and the one that many programs write
// themselves.
func lockers(t *testing.T, kind server.Kind) (all []locker) {
	addr := server.StartFor(t, kind).Addr()
	for _, scheme := range []string{"redis", "valkey"} {
		b, err := dlock.OpenBackend(scheme + "://" + addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		all = append(all, locker{scheme, func(key string) (func() error, error) {
			l, err := b.Acquire(context.Background(), &driver.Request{Key: key, Owner: rand.Text(), TTL: ttl})
			return func() error { return l.Release(context.Background()) }, err
		}})
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = client.Close() })
	sync, obtain := redsync.New(goredis.NewPool(client)), redislock.New(client)
	return append(all, locker{"redsync", func(key string) (func() error, error) {
		m := sync.NewMutex(key, redsync.WithExpiry(ttl))
		err := m.TryLock()
		if taken := new(redsync.ErrTaken); errors.As(err, &taken) {
			err = driver.ErrHeld
		}
		return func() error { _, err := m.Unlock(); return err }, err
	}}, locker{"redislock", func(key string) (func() error, error) {
		l, err := obtain.Obtain(context.Background(), key, ttl, nil)
		if errors.Is(err, redislock.ErrNotObtained) {
			err = driver.ErrHeld
		}
		return func() error { return l.Release(context.Background()) }, err
	}}, locker{"SET NX PX", func(key string) (func() error, error) {
		set, err := client.SetNX(context.Background(), key, "by hand", ttl).Result()
		if err == nil && !set {
			err = driver.ErrHeld
		}
		return func() error { return client.Del(context.Background(), key).Err() }, err
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

// testCommand matches the command of a row of README.md: a folder and a test.
var testCommand = regexp.MustCompile("`go test (?:-C |\\./)(\\S+) (?:-race )?-run (\\w+)\\S*` \\|\n")

// TestEachRowHasATest: the test that each row about our drivers names is there.
func TestEachRowHasATest(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, ours, _ := strings.Cut(string(text), "\n## In ours\n")
	rows := testCommand.FindAllStringSubmatch(ours, -1)
	if n := strings.Count(ours, "\n| ") - 1; len(rows) != n || n < 20 {
		t.Errorf("of %d rows %d have a command", n, len(rows))
	}
	for _, row := range rows {
		files, _ := filepath.Glob(filepath.Join("..", "..", row[1], "*_test.go"))
		if !slices.ContainsFunc(files, func(name string) bool {
			code, err := os.ReadFile(name)
			return err == nil && strings.Contains(string(code), "\nfunc "+row[2]+"(")
		}) {
			t.Errorf("%s has no test %s", row[1], row[2])
		}
	}
}
