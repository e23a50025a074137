package fence

import (
	_ "embed"
	"strconv"
	"strings"
)

//go:embed guard.lua
var guard string

// RedisScript returns a Lua script for Redis and Valkey that runs body unless the token is
// stale: the guard and the write are one script, and so one atomic step. Send it with any
// client, by EVAL or EVALSHA: KEYS[1] is the key of the mark, ARGV[1] the token in decimal;
// body's own keys and arguments begin at KEYS[2] and ARGV[2], and the script returns body's reply.
//
//	script := redis.NewScript(fence.RedisScript(`return redis.call('SET', KEYS[2], ARGV[2])`))
//	err := script.Run(ctx, client, []string{"{doc}:fence", "{doc}"}, token, text).Err()
//	if err = fence.RedisError(err, "doc", token); errors.Is(err, fence.ErrStale) {
//
// In a Cluster the keys need one hash slot, as the braces give them. The mark has no TTL and
// must have none, and eviction must spare it (maxmemory-policy noeviction): a mark that is gone
// lets an old token pass. A server that fails over, or restarts without its memory, may forget
// the last marks together with the last writes.
func RedisScript(body string) string { return guard + body }

// RedisError translates the error of a script of RedisScript: it returns a *StaleError, which is
// ErrStale, if err is the script's refusal of token, and otherwise err itself. It looks at the
// text alone, so it serves every client. resource is for the message.
func RedisError(err error, resource string, token uint64) error {
	if err == nil {
		return nil
	}
	_, rest, _ := strings.Cut(err.Error(), "STALE ")
	digits, _, ok := strings.Cut(rest, " is the largest token seen")
	seen, failed := strconv.ParseUint(digits, 10, 64)
	if !ok || failed != nil {
		return err
	}
	return &StaleError{Resource: resource, Token: token, Seen: seen}
}
