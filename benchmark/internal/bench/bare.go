package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// protocol is how one server is asked for a lock.
type protocol interface {
	// acquire returns what renew and release need beside the owner.
	acquire(key, owner string) []string
	granted(reply any) (token string, ok bool)
	renew(key, owner, token string) []string
	release(key, owner, token string) []string
}

// bare is the lock of a thousand blog posts: SET NX PX, and two scripts that compare
// before they extend or delete. It has no token, no wake-up, no server time.
type bare struct {
	ttl             string
	extend, compare string // SHA-1s
}

const (
	luaCompareAndDelete = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`
	luaCompareAndExtend = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0`
)

// newBare loads the two scripts into the server at addr.
func newBare(ctx context.Context, addr string, s *Setup) (protocol, error) {
	conn, err := openGoRedis(addr, time.Second)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.close() }() // it has served
	b := &bare{ttl: strconv.FormatInt(s.TTL.Milliseconds(), 10)}
	for _, script := range []struct {
		text string
		sha  *string
	}{{luaCompareAndDelete, &b.compare}, {luaCompareAndExtend, &b.extend}} {
		reply, err := conn.do(ctx, []string{"SCRIPT", "LOAD", script.text})
		if err != nil {
			return nil, fmt.Errorf("load a script: %w", err)
		}
		*script.sha, _ = reply.(string)
	}
	return b, nil
}

func (b *bare) acquire(key, owner string) []string {
	return []string{"SET", key, owner, "NX", "PX", b.ttl}
}

func (b *bare) granted(reply any) (string, bool) { return "", reply == "OK" }

func (b *bare) renew(key, owner, _ string) []string {
	return []string{"EVALSHA", b.extend, "1", key, owner, b.ttl}
}

func (b *bare) release(key, owner, _ string) []string {
	return []string{"EVALSHA", b.compare, "1", key, owner}
}
