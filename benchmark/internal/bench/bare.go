package bench

import (
	"context"
	"strconv"
	"time"
)

// protocol makes the commands that take and release a lock on one server.
type protocol interface {
	// granted reads the reply to acquire. It returns the token, which release takes.
	acquire(key, owner string) []string
	granted(reply any) (token string, ok bool)
	release(key, owner, token string) []string
}

// bare is the lock that most tutorials show: SET NX PX, and a script that compares the owner
// before it deletes. It has no fencing token, wakes no waiter and reads no server clock.
type bare struct{ ttl, compare string } // milliseconds; the script's SHA-1

const luaCompareAndDelete = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

// newBare loads the script into the server at addr.
func newBare(ctx context.Context, addr string, s *Setup) (protocol, error) {
	conn, err := openGoRedis(addr, time.Second)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.close() }() // it has served
	reply, err := conn.do(ctx, []string{"SCRIPT", "LOAD", luaCompareAndDelete})
	sha, _ := reply.(string)
	return &bare{strconv.FormatInt(s.TTL.Milliseconds(), 10), sha}, err
}

func (b *bare) acquire(key, owner string) []string {
	return []string{"SET", key, owner, "NX", "PX", b.ttl}
}

func (b *bare) granted(reply any) (string, bool) { return "", reply == "OK" }

func (b *bare) release(key, owner, _ string) []string {
	return []string{"EVALSHA", b.compare, "1", key, owner}
}
