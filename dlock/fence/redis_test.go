package fence_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/dlock/fence"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A document in Redis, with its mark beside it.
func ExampleRedisScript() {
	db := redis.NewClient(&redis.Options{Addr: redisServer.Addr()})
	defer db.Close()
	locks := client()
	defer locks.Close()
	ctx := context.Background()

	set := redis.NewScript(fence.RedisScript(`return redis.call('SET', KEYS[2], ARGV[2])`))
	write := func(token uint64, text string) error {
		err := set.Run(ctx, db, []string{"{doc}:fence", "{doc}"}, token, text).Err()
		return fence.RedisError(err, "doc", token)
	}

	slow, quick := tokens(locks, "doc")
	fmt.Println("quick:", write(quick, "new"))
	fmt.Println("slow is refused:", errors.Is(write(slow, "old"), fence.ErrStale))
	fmt.Println("stored:", db.Get(ctx, "{doc}").Val())
	// Output:
	// quick: <nil>
	// slow is refused: true
	// stored: new
}

const body = `return redis.call('SET', KEYS[2], ARGV[2])`

// The script refuses on both servers, through both clients.
func TestTheScriptRefusesStaleTokens(t *testing.T) {
	for kind, start := range map[string]func(testing.TB, ...server.Option) *server.Server{"redis": server.Redis, "valkey": server.Valkey} {
		s := start(t)
		one := redis.NewClient(&redis.Options{Addr: s.Addr()})
		t.Cleanup(func() { _ = one.Close() })
		other, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{s.Addr()}, DisableCache: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(other.Close)
		script := valkey.NewLuaScript(fence.RedisScript(body))
		for client, run := range map[string]func(mark, token, value string) error{
			"go-redis": func(mark, token, value string) error {
				return redis.NewScript(fence.RedisScript(body)).Run(t.Context(), one, []string{mark, "d"}, token, value).Err()
			},
			"valkey-go": func(mark, token, value string) error {
				return script.Exec(t.Context(), other, []string{mark, "d"}, []string{token, value}).Error()
			},
		} {
			mark := "mark/" + client
			for _, step := range []struct {
				token uint64
				want  error
			}{{1 << 52, nil}, {1 << 52, nil}, {1<<52 - 1, fence.ErrStale}, {1<<53 - 1, nil}, {1<<53 - 2, fence.ErrStale}} {
				value := fmt.Sprint(client, step.token)
				err := fence.RedisError(run(mark, fmt.Sprint(step.token), value), "d", step.token)
				if !errors.Is(err, step.want) {
					t.Errorf("%s, %s: token %d: got %v, want %v", kind, client, step.token, err, step.want)
				}
				if wrote := one.Get(t.Context(), "d").Val() == value; wrote != (err == nil) {
					t.Errorf("%s, %s: token %d: written: %t, though %v", kind, client, step.token, wrote, err)
				}
			}
			var stale *fence.StaleError
			if !errors.As(fence.RedisError(run(mark, "5", ""), "d", 5), &stale) || stale.Seen != 1<<53-1 {
				t.Errorf("%s, %s: the error is %+v", kind, client, stale)
			}
			for _, bad := range []string{"", "0", "-1", "1e9", "01", "0x10", "nan", "99999999999999999"} {
				if err := run(mark, bad, "bad"); err == nil || errors.Is(fence.RedisError(err, "d", 1), fence.ErrStale) {
					t.Errorf("%s, %s: token %q: got %v", kind, client, bad, err)
				}
			}
			one.Set(t.Context(), "text", "not a token", 0)
			if err := run("text", "9", "bad"); err == nil {
				t.Errorf("%s, %s: a mark that is no token passes", kind, client)
			}
			if got := one.Get(t.Context(), "d").Val(); got == "bad" {
				t.Errorf("%s, %s: a refused call wrote", kind, client)
			}
		}
	}
}
