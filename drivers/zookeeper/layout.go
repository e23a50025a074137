package zookeeper

import (
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
// _c_GUID-shared-lock-SEQUENCE for a shared one; or _c_GUID-__WRIT__SEQUENCE and
// _c_GUID-__READ__SEQUENCE, as those of its InterProcessReadWriteLock. All four are understood.
const (
	layout = "dlock1"
	marker = ".dlock"
)

// A recipe says how entries are named.
type recipe struct{ exclusive, shared string }

var recipes = map[string]recipe{
	"mutex":     {"-lock-", "-shared-lock-"},
	"readwrite": {"-__WRIT__", "-__READ__"},
}

// sharedMarks are parts of the names of shared entries: of this driver, of Curator, and of kazoo.
var sharedMarks = []string{"-shared-lock-", "-__READ__", "__rlock__"}

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

const protected = "_c_"

// entryName returns the name of an entry without its sequence number.
func (b *Backend) entryName(guid string, mode driver.Mode) string {
	r := recipes[b.opt.Recipe]
	if mode == driver.Shared {
		return protected + guid + r.shared
	}
	return protected + guid + r.exclusive
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
		if slices.ContainsFunc(sharedMarks, func(mark string) bool { return strings.Contains(name, mark) }) {
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

func parseMark(data []byte) (m mark, err error) {
	var us int64
	_, err = fmt.Sscanf(string(data), layout+" %d %d", &us, &m.latest)
	m.advance = time.Duration(us) * time.Microsecond
	if err != nil || us < 0 || us > most.Microseconds() || m.latest < 0 || m.latest > most.Milliseconds() || string(m.value()) != string(data) {
		return mark{}, errLayout
	}
	return m, nil
}

// counterValue returns the data of a lock's container.
func counterValue(n uint64) []byte { return fmt.Appendf(nil, "%s %d", layout, n) }

// parseCounter reads the data of counterValue. A container that another library made is empty.
func parseCounter(data []byte) (n uint64, err error) {
	if len(data) == 0 {
		return 0, nil
	}
	version, number, _ := strings.Cut(string(data), " ")
	n, err = strconv.ParseUint(number, 10, 64)
	if version != layout || err != nil || n > driver.MaxFence {
		return 0, errLayout
	}
	return n, nil
}

func entryValue(token uint64, owner string) []byte {
	return fmt.Appendf(nil, "%s|%d|%s", layout, token, owner)
}

// parseEntry returns the owner, the length of the range of its tokens, and the last token of an
// entry. For an entry of another library the owner is its data, or its name if it has none, and the
// token is the transaction that made it.
func parseEntry(name string, data []byte, czxid int64) (owner string, tokens uint32, token uint64) {
	version, rest, _ := strings.Cut(string(data), "|")
	number, owner, ok := strings.Cut(rest, "|")
	if n, err := strconv.ParseUint(number, 10, 64); ok && err == nil && version == layout && n > 0 && n <= driver.MaxFence && owner != "" {
		owner, tokens = base.Unranged(owner)
		return owner, tokens, n
	}
	owner = string(data)
	if owner == "" {
		owner = name
	}
	return owner, 0, uint64(czxid)
}
