package cli

import (
	"context"
	"slices"
	"strings"
	"time"
)

// mostGrace is how much longer than the longest TTL of a case a server may keep a lock. A URL
// does not show its grace; that of a lone Redis, for example, is 10 ms and a hundredth of the
// TTL.
const mostGrace = 3 * time.Second

// remains returns the keys of this run that are still held: they were not held before, and do
// not end by the TTL of a case. least is the backend's shortest TTL. A key of another run of this
// command does not count, which is seldom held for the whole time.
func (o *options) remains(ctx context.Context, url string, before []string, least time.Duration) ([]string, error) {
	const longest = 20 // TTLs: the stress leaves locks with a TTL of 12 to killed processes
	pause := time.NewTicker(200 * time.Millisecond)
	defer pause.Stop()
	_, left, err := describe(ctx, url)
	left = slices.DeleteFunc(left, func(key string) bool { return slices.Contains(before, key) })
	for end := time.Now().Add(longest*max(o.ttl, least) + mostGrace); err == nil && len(left) > 0 && time.Now().Before(end); {
		<-pause.C
		var held []string
		_, held, err = describe(ctx, url)
		left = slices.DeleteFunc(left, func(key string) bool { return !slices.Contains(held, key) })
	}
	return append([]string{}, left...), err
}

// ownLocks and marked are schemes of drivers whose backends list their own locks alone, and whose
// prefixes leave marks on the server.
var (
	ownLocks = []string{"postgres", "postgresql"}
	marked   = []string{"redis", "rediss", "redis+unix", "valkey", "valkeys", "valkey+unix", "redlock"}
)

// isOf reports whether a URL has one of these schemes.
func isOf(url string, schemes []string) bool {
	scheme, _, _ := strings.Cut(url, ":")
	return slices.Contains(schemes, scheme)
}
