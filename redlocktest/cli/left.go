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

// onRedis is what stays on each server of Redis or Valkey.
const onRedis = "the keys redlock1:mark and, with a restart guard, redlock1:meta, behind the prefix; " +
	"counters of tokens (redlock1:fence:…) and wait queues (redlock1:queue:…), which end minutes after their last use; " +
	"scripts in the server's cache"

// stays is what drivers keep besides locks, by the scheme of their URLs.
var stays = map[string]string{
	"memory":   "nothing: it ends with the process",
	"file":     "the folder with the files .gates and .gate-0 to .gate-f, and files of keys, which backends remove when they later make new keys",
	"redis":    onRedis,
	"valkey":   onRedis,
	"redlock":  onRedis,
	"postgres": "the sequence of the tokens (public.dlock_fence), if it was not there",
	"etcd":     "the key .dlock below the path: the layout's version and the base of the tokens; etcd leases without keys, which end with their TTLs",
	"zk":       "the path and its node .dlock; empty containers of keys, which the servers remove within minutes",
	"table":    "the table, if setup made it, with the row that has no name; rows of keys, which a later client deletes after two minutes",
}

// aliases are other schemes of the same drivers.
var aliases = map[string]string{
	"rediss": "redis", "redis+unix": "redis", "valkeys": "valkey", "valkey+unix": "valkey", "postgresql": "postgres",
	"etcds": "etcd", "zks": "zk", "mysql": "table", "mariadb": "table", "pgtable": "table", "sqlite": "table",
}

// kindOf returns the key of stays for a URL.
func kindOf(url string) string {
	scheme, _, _ := strings.Cut(url, ":")
	if name, ok := aliases[scheme]; ok {
		return name
	}
	return scheme
}

// kept says what the driver of a URL keeps on its servers besides locks.
func kept(url string) string {
	if what, ok := stays[kindOf(url)]; ok {
		return what
	}
	return "what the driver documents: this command knows it only for the drivers of github.com/redlock-go/redlock"
}
