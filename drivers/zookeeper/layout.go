package zookeeper

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// What is stored under the path:
//
//	.dlock          "dlock1 ADVANCE LATEST": the version of the layout, by how many microseconds
//	                new counters are ahead of the leader's clock, and the latest time in
//	                milliseconds of which clients told each other
//	KEY             "dlock1 TOKEN": the lock's container, and the largest token that was given
//	KEY/ENTRY       "dlock1|TOKEN|OWNER": an owner, or a waiter; OWNER+N if it has N tokens
//
// KEY is the prefix and the key, escaped. ENTRY is an ephemeral sequential node named
// _c_GUID-lock-SEQUENCE for an exclusive owner, as those of Curator's InterProcessMutex, and
// _c_GUID-shared-lock-SEQUENCE for a shared one.
const (
	layout = "dlock1"
	marker = ".dlock"
	shared = "-shared-lock-"
)

// escape makes the name of a node: '%', '/', a leading '.', and all bytes that are not printable
// ASCII are written as %XX.
func escape(key string) string {
	var b []byte
	for i := range len(key) {
		c := key[i]
		if c <= ' ' || c >= 0x7f || c == '%' || c == '/' || c == '.' && i == 0 {
			b = fmt.Appendf(b, "%%%02X", c)
			continue
		}
		b = append(b, c)
	}
	return string(b)
}

// unescape is the inverse of escape. A name that escape does not make stays as it is.
func unescape(name string) string {
	if key, err := url.PathUnescape(name); err == nil {
		return key
	}
	return name
}

// Path returns the node under which key is stored. A lock that Curator's InterProcessMutex or
// NewLock of go-zookeeper makes with this node, and this backend's lock of key exclude each
// other.
func (b *Backend) Path(key string) string { return b.opt.Path + escape(b.opt.Prefix+key) }

func (b *Backend) marker() string { return b.opt.Path + marker }

// entryName returns the name of an entry without its sequence number.
func entryName(guid string, mode driver.Mode) string {
	if mode == driver.Shared {
		return "_c_" + guid + shared
	}
	return "_c_" + guid + "-lock-"
}

// An entry is a child of a lock's container.
type entry struct {
	name     string
	mode     driver.Mode
	sequence int64
}

// parseQueue returns the entries among the names of children, in the order in which they came. A
// name that does not end with a sequence number is no entry.
func parseQueue(children []string) []entry {
	var entries []entry
	for _, name := range children {
		digits := len(name) - 10
		if digits < 1 {
			continue
		}
		n, err := strconv.ParseUint(name[digits:], 10, 32)
		if err != nil {
			continue
		}
		e := entry{name: name, sequence: int64(n)}
		if strings.Contains(name, shared) {
			e.mode = driver.Shared
		}
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(x, y entry) int { return int(x.sequence - y.sequence) })
	return entries
}

// before returns the last of the entries that exclude an owner in this mode, nil if there is none.
func before(entries []entry, mode driver.Mode) *entry {
	for i := len(entries) - 1; i >= 0; i-- {
		if mode == driver.Exclusive || entries[i].mode == driver.Exclusive {
			return &entries[i]
		}
	}
	return nil
}

// find returns the index of the entry whose name has this beginning, -1 if there is none.
func find(entries []entry, name string) int {
	return slices.IndexFunc(entries, func(e entry) bool { return strings.HasPrefix(e.name, name) })
}

// A mark is what the marker holds.
type mark struct {
	advance time.Duration // of new counters before the leader's clock
	latest  int64         // time of the leader that a client saw, in milliseconds since 1970
}

func (m mark) value() []byte {
	return fmt.Appendf(nil, "%s %d %d", layout, m.advance.Microseconds(), m.latest)
}

// most bounds both numbers of a mark, so that no time overflows.
const most = time.Duration(driver.MaxFence) * time.Microsecond

func parseMark(data []byte) (m mark, ok bool) {
	var us int64
	_, err := fmt.Sscanf(string(data), layout+" %d %d", &us, &m.latest)
	m.advance = time.Duration(us) * time.Microsecond
	return m, err == nil && us >= 0 && us <= most.Microseconds() && m.latest >= 0 && m.latest <= most.Milliseconds() && string(m.value()) == string(data)
}

// counterValue returns the data of a lock's container.
func counterValue(n uint64) []byte { return fmt.Appendf(nil, "%s %d", layout, n) }

// counter reads the data of counterValue. A container that another library made is empty.
func (b *Backend) counter(data []byte) (uint64, error) {
	if len(data) == 0 {
		return 0, nil
	}
	return base.ParseBase(string(data), layout, b.opt.Path)
}

// parseEntry returns the owner of an entry, and its tokens. For an entry of another library the owner is
// its data, or its name if it has none, and the token is the transaction that made it.
func parseEntry(name string, got answer) (h driver.Holder) {
	data, ok := string(got.data), false
	if h.Fence, h.Owner, h.Tokens, ok = base.ParseEntry(data, layout); !ok || h.Fence == 0 {
		h = driver.Holder{Owner: cmp.Or(data, name), Fence: uint64(got.stat.made)}
	}
	return h
}
