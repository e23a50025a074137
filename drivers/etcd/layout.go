package etcd

import (
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redlock-go/redlock/driver"
)

// What is stored under the path:
//
//	.dlock               "dlock1 BASE": the version of the layout, and the base of the tokens
//	KEY/write/LEASE      an exclusive owner, or a waiter
//	KEY/read/LEASE       a shared one
//
// with KEY the prefix and the key, in which '%' and '/' are written as %25 and %2F. The value
// of an owner's entry is "dlock1|BASE|OWNER": its token is BASE plus its create revision. The
// entry with the smallest create revision is the first in line.
//
// These are the entries of the recipes' RWMutex. Mutex of package concurrency writes
// KEY/LEASE, and takes all that begins with KEY/ for its line, as we do.
const (
	layout = "dlock1"
	write  = "write/"
	read   = "read/"
	// readEnd follows all that begins with read.
	readEnd = "read0"
)

var escaper = strings.NewReplacer("%", "%25", "/", "%2F")
var unescaper = strings.NewReplacer("%25", "%", "%2F", "/")

// Path returns the name under which key is stored. Hand it to concurrency.NewMutex of etcd's
// client to make a mutex that excludes this backend's lock of key, and is excluded by it.
func (b *Backend) Path(key string) string { return b.opt.Path + escaper.Replace(b.opt.Prefix+key) }

func (b *Backend) baseKey() string { return b.opt.Path + ".dlock" }

// A span is a range of etcd's keys.
type span struct{ from, to string }

// line returns all entries of a key.
func line(path string) span {
	return span{path + "/", clientv3.GetPrefixRangeEnd(path + "/")}
}

// excluders returns the entries that keep out an owner in this mode, if they come before its
// own.
func excluders(path string, mode driver.Mode) []span {
	all := line(path)
	if mode == driver.Exclusive {
		return []span{all}
	}
	return []span{{all.from, all.from + read}, {all.from + readEnd, all.to}}
}

// entryKey returns the key of an owner's entry.
func entryKey(path string, mode driver.Mode, lease clientv3.LeaseID) string {
	kind := write
	if mode == driver.Shared {
		kind = read
	}
	return path + "/" + kind + strconv.FormatInt(int64(lease), 16)
}

// An entry is an owner, as it is stored.
type entry struct {
	key   string
	path  string
	mode  driver.Mode
	owner string
	fence uint64
	rev   int64 // the create revision
	lease clientv3.LeaseID
}

// parse reads an entry. The token of another library's is its create revision.
func parse(kv *mvccpb.KeyValue) (e entry, ok bool) {
	e = entry{key: string(kv.Key), rev: kv.CreateRevision, lease: clientv3.LeaseID(kv.Lease), fence: uint64(kv.CreateRevision)}
	for _, kind := range []string{"/" + read, "/" + write, "/"} {
		if at := strings.LastIndex(e.key, kind); at >= 0 && !strings.Contains(e.key[at+len(kind):], "/") {
			e.path = e.key[:at]
			if kind == "/"+read {
				e.mode = driver.Shared
			}
			break
		}
	}
	if e.path == "" {
		return e, false
	}
	if base, owner, ok := parseValue(string(kv.Value)); ok {
		e.owner, e.fence = owner, base+uint64(e.rev)
		return e, true
	}
	e.owner = string(kv.Value)
	if e.owner == "" {
		e.owner = "lease " + strconv.FormatInt(kv.Lease, 16)
	}
	return e, true
}

func entryValue(base uint64, owner string) string {
	return layout + "|" + strconv.FormatUint(base, 10) + "|" + owner
}

func parseValue(value string) (base uint64, owner string, ok bool) {
	version, rest, _ := strings.Cut(value, "|")
	number, owner, ok := strings.Cut(rest, "|")
	base, err := strconv.ParseUint(number, 10, 64)
	return base, owner, ok && err == nil && version == layout
}
