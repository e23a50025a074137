package goredis_test

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// Lock and unlock, on the client of a URL's settings and on an application's client with the
// library's defaults, beside its limits on the same client with nothing around them: two
// scripts that do the same work, and SET NX PX with a compare-and-delete.
func BenchmarkLockUnlock(b *testing.B) {
	s := server.Redis(b)
	for _, n := range []int{1, 64} {
		client := redis.NewClient(&redis.Options{Addr: s.Addr(), Protocol: 2, MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true, PoolSize: 10})
		defer func() { _ = client.Close() }()
		backend, err := goredis.New(client, nil)
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = backend.Close() }()
		defaults := redis.NewClient(&redis.Options{Addr: s.Addr()})
		defer func() { _ = defaults.Close() }()
		handed, err := goredis.New(defaults, nil)
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = handed.Close() }()
		b.Run(fmt.Sprintf("driver/%d", n), func(b *testing.B) { parallel(b, n, driverCycle(backend)) })
		b.Run(fmt.Sprintf("driver-on-defaults/%d", n), func(b *testing.B) { parallel(b, n, driverCycle(handed)) })
		b.Run(fmt.Sprintf("scripts-on-defaults/%d", n), func(b *testing.B) { parallel(b, n, scriptsCycle(b, s, defaults)) })
		b.Run(fmt.Sprintf("scripts/%d", n), func(b *testing.B) { parallel(b, n, scriptsCycle(b, s, client)) })
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

// What the scripts cost the server, in µs per call by its own count, beside SET and
// a script that only sets.
func BenchmarkScriptCost(b *testing.B) {
	for name, kind := range kinds {
		b.Run(name, func(b *testing.B) {
			s := server.StartFor(b, kind)
			client := redis.NewClient(&redis.Options{Addr: s.Addr(), Protocol: 2, DisableIdentity: true})
			defer func() { _ = client.Close() }()
			acquire, release := goredis.ScriptsOf(b, client)
			const setOnly = `return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 10000)`
			cost := func(unit, command string, do func(pipe redis.Pipeliner, i int)) {
				_ = client.ConfigResetStat(context.Background())
				for range 20 {
					pipe := client.Pipeline()
					for i := range 500 {
						do(pipe, i)
					}
					if _, err := pipe.Exec(context.Background()); err != nil && !errors.Is(err, redis.Nil) {
						b.Fatal(err)
					}
					if unit != "µs/acquire-release-mean" && unit != "µs/held" {
						if err := client.FlushDB(context.Background()).Err(); err != nil {
							b.Fatal(err)
						}
					}
				}
				b.ReportMetric(perCall(b, client, command), unit)
			}
			load := func(text string) string { return client.ScriptLoad(context.Background(), text).Val() }
			a, r, empty, set := load(acquire), load(release), load("return 1"), load(setOnly)
			key := func(i int) string { return "key:" + strconv.Itoa(i) }
			take := func(pipe redis.Pipeliner, i int) {
				pipe.EvalSha(context.Background(), a, []string{key(i), "redlock1:fence:{" + key(i) + "}", "redlock1:mark"}, "9007199254740991", "host/1234/0123456789abcdef"+strconv.Itoa(i), "12000", "0", "130000")
			}
			for b.Loop() {
				cost("µs/SET", "set", func(pipe redis.Pipeliner, i int) { pipe.SetNX(context.Background(), key(i), "v", 10*time.Second) })
				cost("µs/empty", "evalsha", func(pipe redis.Pipeliner, i int) { pipe.EvalSha(context.Background(), empty, []string{key(i)}) })
				cost("µs/set-in-script", "evalsha", func(pipe redis.Pipeliner, i int) { pipe.EvalSha(context.Background(), set, []string{key(i)}, "v") })
				cost("µs/acquire", "evalsha", take)
				cost("µs/held", "evalsha", take)
				pairs := func(pipe redis.Pipeliner, i int) {
					take(pipe, i)
					pipe.EvalSha(context.Background(), r, []string{key(i)}, "0", "host/1234/0123456789abcdef"+strconv.Itoa(i)+"|", "redlock1:free:{"+key(i)+"}", "redlock1:line:{"+key(i)+"}", "redlock1:free:", "1")
				}
				_ = client.FlushDB(context.Background())
				cost("µs/acquire-release-mean", "evalsha", pairs)
			}
		})
	}
}

// perCall returns what a command took on average by INFO commandstats, in µs.
func perCall(b *testing.B, client *redis.Client, command string) float64 {
	info := client.Info(context.Background(), "commandstats").Val()
	m := regexp.MustCompile(`cmdstat_` + command + `:\S*usec_per_call=([0-9.]+)`).FindStringSubmatch(info)
	if m == nil {
		b.Fatalf("no statistics of %s: %s", command, info)
	}
	us, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		b.Fatal(err)
	}
	return us
}

// scriptsCycle calls the driver's own scripts, as it has left them on the server.
func scriptsCycle(b *testing.B, s *server.Server, client *redis.Client) cycle {
	acquire, release := goredis.ScriptsOf(b, client)
	sum := func(text string) string { h := sha1.Sum([]byte(text)); return hex.EncodeToString(h[:]) }
	a, r := sum(acquire), sum(release)
	return func(ctx context.Context, key, owner string) error {
		x, err := client.EvalSha(ctx, a, []string{key, "redlock1:fence:{" + key + "}", "redlock1:mark"}, "9007199254740991", owner, "12000", "0", "130000").Int64()
		if err != nil {
			return err
		}
		return client.EvalSha(ctx, r, []string{key}, "0", owner+"|"+strconv.FormatInt(x, 10), "redlock1:free:{"+key+"}", "redlock1:line:{"+key+"}", "redlock1:free:", "1").Err()
	}
}

var compareAndDelete = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

func bareCycle(client *redis.Client) cycle {
	return func(ctx context.Context, key, owner string) error {
		if err := client.SetNX(ctx, key, owner, 10*time.Second).Err(); err != nil {
			return err
		}
		return compareAndDelete.Run(ctx, client, []string{key}, owner).Err()
	}
}
