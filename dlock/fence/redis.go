package fence

import (
	_ "embed"
	"strconv"
	"strings"
)

//go:embed guard.lua
var guard string

// RedisScript returns a Lua script for Redis and Valkey that runs body unless the token is
// stale: the check and the write are one script, and so one atomic step. Send it with any
// client, by EVAL or EVALSHA: KEYS[1] is the key of the mark, ARGV[1] the token in decimal;
// body's own keys and arguments begin at KEYS[2] and ARGV[2], and the script returns body's
// reply.
//
//	script := redis.NewScript(fence.RedisScript(`return redis.call('SET', KEYS[2], ARGV[2])`))
//	err := script.Run(ctx, client, []string{"{doc}:fence", "{doc}"}, token, text).Err()
//	if err = fence.RedisError(err, "doc", token); errors.Is(err, fence.ErrStale) {
//
// In a Cluster the keys need the same hash slot, which the braces ensure. The mark must never
// get a TTL or be evicted (maxmemory-policy noeviction): without a mark an old token passes. A
// server that fails over, or restarts without its memory, may forget the last marks together
// with the last writes.
func RedisScript(body string) string { return guard + body }

// RedisError translates the error of a script of RedisScript: it returns a *StaleError, which
// is ErrStale, if err is the script's refusal of token, and otherwise err itself. It only reads
// the error's text, so it works with every client. The message names resource.
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
