package valkeygo_test

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/valkeygo"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// Lock and unlock, beside its limits on the library as it is: two scripts that do the
// same work, and SET NX PX with a compare-and-delete.
func BenchmarkLockUnlock(b *testing.B) {
	s := server.Valkey(b)
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{s.Addr()}, DisableRetry: true})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	backend, err := valkeygo.Driver{}.Open(&driver.Config{DSN: "valkey://" + s.Addr()})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = backend.Close() }()
	handed, err := valkeygo.New(client, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = handed.Close() }()
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("driver/%d", n), func(b *testing.B) { parallel(b, n, driverCycle(backend)) })
		b.Run(fmt.Sprintf("driver-on-client/%d", n), func(b *testing.B) { parallel(b, n, driverCycle(handed)) })
		b.Run(fmt.Sprintf("scripts/%d", n), func(b *testing.B) { parallel(b, n, scriptsCycle(b, client)) })
		b.Run(fmt.Sprintf("bare/%d", n), func(b *testing.B) { parallel(b, n, bareCycle(client)) })
	}
}

type cycle func(ctx context.Context, key, owner string) error

func parallel(b *testing.B, n int, do cycle) {
	var who, left atomic.Int64
	left.Store(int64(b.N))
	done := make(chan error)
	b.ResetTimer()
	for range n {
		go func() {
			key, i := "bench"+strconv.FormatInt(who.Add(1), 10), 0
			for left.Add(-1) >= 0 {
				i++
				if err := do(context.Background(), key, "bench/"+strconv.Itoa(i)); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range n {
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
}

func driverCycle(backend driver.Backend) cycle {
	return func(ctx context.Context, key, owner string) error {
		l, err := backend.Acquire(ctx, &driver.Request{Key: key, Owner: owner, TTL: 10 * time.Second})
		if err != nil {
			return err
		}
		return l.Release(ctx)
	}
}

// scriptsCycle calls the driver's own scripts, as it has left them on the server.
func scriptsCycle(b *testing.B, v valkey.Client) cycle {
	info, err := v.Do(context.Background(), v.B().Info().Section("server").Build()).ToString()
	if err != nil {
		b.Fatal(err)
	}
	acquire, release := valkeygo.ScriptsOf(regexp.MustCompile(`run_id:(\w+)`).FindStringSubmatch(info)[1])
	sum := func(text string) string { h := sha1.Sum([]byte(text)); return hex.EncodeToString(h[:]) }
	a, r := sum(acquire), sum(release)
	return func(ctx context.Context, key, owner string) error {
		x, err := v.Do(ctx, v.B().Evalsha().Sha1(a).Numkeys(3).Key(key, "redlock1:fence:{"+key+"}", "redlock1:mark").
			Arg("9007199254740991", owner, "12000", "0", "130000").Build()).AsInt64()
		if err != nil {
			return err
		}
		return v.Do(ctx, v.B().Evalsha().Sha1(r).Numkeys(1).Key(key).
			Arg("0", owner+"|"+strconv.FormatInt(x, 10), "redlock1:free:{"+key+"}", "redlock1:line:{"+key+"}", "redlock1:free:", "1").Build()).Error()
	}
}

var compareAndDelete = valkey.NewLuaScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

func bareCycle(v valkey.Client) cycle {
	return func(ctx context.Context, key, owner string) error {
		if err := v.Do(ctx, v.B().Set().Key(key).Value(owner).Nx().Px(10*time.Second).Build()).Error(); err != nil {
			return err
		}
		return compareAndDelete.Exec(ctx, v, []string{key}, []string{owner}).Error()
	}
}
