package etcd

import (
	"cmp"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// What is stored under the path:
//
//	.dlock               "dlock1 BASE": the version of the layout, and the base of the tokens
//	KEY/write/LEASE.N    an exclusive owner, or a waiter
//	KEY/read/LEASE.N     a shared one
//
// KEY is the prefix and the key, in which '%' and '/' are written as %25 and %2F. N tells the
// entries of an etcd lease apart. It is used again when no request for its entry can arrive late, so that
// a late release deletes no other entry. The value of an owner's entry is "dlock1|BASE|OWNER": its token is
// BASE plus its create revision. With a range of tokens it is "dlock1|BASE|OWNER+N": that is the
// last of N. The entry with the smallest create revision is the first in the queue.
//
// The entries of the recipes' RWMutex have these names without N, and Mutex of package
// concurrency writes KEY/LEASE. Like this driver, it takes all entries that begin with KEY/ as
// its queue.
const (
	layout = "dlock1"
	write  = "write/"
	read   = "read/"
	// readEnd follows all names that begin with read.
	readEnd = "read0"
)

var escaper = strings.NewReplacer("%", "%25", "/", "%2F")
var unescaper = strings.NewReplacer("%25", "%", "%2F", "/")

// Path returns the name under which key is stored. A mutex that concurrency.NewMutex of etcd's
// client makes with this name and this backend's lock of key exclude each other.
func (b *Backend) Path(key string) string { return b.opt.Path + escaper.Replace(b.opt.Prefix+key) }

func (b *Backend) baseKey() string { return b.opt.Path + ".dlock" }

// A span is a range of etcd's keys.
type span struct{ from, to string }

// queueSpan returns the span of all entries of a key.
func queueSpan(path string) span {
	return span{path + "/", clientv3.GetPrefixRangeEnd(path + "/")}
}

// excluders returns the spans of the entries that exclude an owner in this mode, if they come
// before its own.
func excluders(path string, mode driver.Mode) []span {
	all := queueSpan(path)
	if mode == driver.Exclusive {
		return []span{all}
	}
	return []span{{all.from, all.from + read}, {all.from + readEnd, all.to}}
}

// numbers tell the entries of a session apart that have a key and a mode in common.
type numbers struct {
	last int
	free []int // of those up to last
}

// name returns the key of a new entry, which no other entry of the session has. Those of earlier entries
// are used again: etcd looks at all keys that ever were in a queue, until its history is compacted.
func (s *session) name(path string, mode driver.Mode) string {
	kind := write
	if mode == driver.Shared {
		kind = read
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	begin := path + "/" + kind + strconv.FormatInt(int64(s.id), 16) + "."
	x := s.names[begin]
	if x == nil {
		x = &numbers{}
		s.names[begin] = x
	}
	if len(x.free) == 0 {
		x.last++
		x.free = append(x.free, x.last)
	}
	n := x.free[len(x.free)-1]
	x.free = x.free[:len(x.free)-1]
	return begin + strconv.Itoa(n)
}

// free lets another entry have this key. No request that makes or deletes this entry is under way.
func (s *session) free(key string) {
	begin := key[:strings.LastIndexByte(key, '.')+1]
	n, _ := strconv.Atoi(key[len(begin):]) // as name has made it
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.names[begin]
	if x.free = append(x.free, n); len(x.free) == x.last {
		delete(s.names, begin) // none is used
	}
}

// An entry is a stored owner.
type entry struct {
	base.Entry
	key   string
	path  string
	rev   int64 // the create revision
	lease clientv3.LeaseID
}

// parse reads an entry. The token of another library's entry is its create revision.
func (b *Backend) parse(kv *mvccpb.KeyValue) (e entry, ok bool) {
	e = entry{key: string(kv.Key), rev: kv.CreateRevision, lease: clientv3.LeaseID(kv.Lease)}
	e.Fence = uint64(kv.CreateRevision)
	name, ok := strings.CutPrefix(e.key, b.opt.Path)
	end := strings.IndexByte(name, '/')
	if !ok || end <= 0 {
		return e, false
	}
	e.path = e.key[:len(b.opt.Path)+end]
	if strings.HasPrefix(name[end+1:], read) {
		e.Mode = driver.Shared
	}
	stored, owner, tokens, ours := base.ParseEntry(string(kv.Value), layout)
	if ours && stored+e.Fence <= driver.MaxFence {
		e.Owner, e.Tokens, e.Fence = owner, tokens, stored+e.Fence
	} else {
		e.Owner = cmp.Or(string(kv.Value), "lease "+strconv.FormatInt(kv.Lease, 16))
	}
	return e, true
}
