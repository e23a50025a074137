// Package names has the names of a lock's keys and channels, and the text of its value. In a
// Cluster all keys of one lock are in one slot.
package names

import (
	"strconv"
	"strings"
	"sync"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// Layout begins the name of every key beside the locks, after the prefix. The number is the
// version of the layout, which is frozen: a release with another layout uses another number.
const Layout = "redlock1:"

// Next begins the value of a lock that is reserved for a place in the wait queue.
const Next = Layout + "next|"

// Shared is the value of a lock that readers have: see Readers.
const Shared = Layout + "shared"

// A Prefix begins the names of all keys and channels of a client's locks.
type Prefix string

// Lock returns the name of the lock itself: exactly the user's key, after the prefix.
func (n Prefix) Lock(key string) string { return string(n) + key }

// Counter returns the name of the lock's fencing counter.
func (n Prefix) Counter(key string) string { return n.sibling("fence", key) }

// Mark returns the name of the mark that a server's counters share; in a Cluster, those of one
// slot, so that one script may use both.
func (n Prefix) Mark(key string, cluster bool) string {
	base := string(n) + Layout + "mark"
	if !cluster {
		return base
	}
	if hashTag(string(n)+"x") != string(n)+"x" {
		return base // the prefix has a hash tag, so all keys are in one slot
	}
	return base + ":{" + slotTag(Slot(n.Lock(key))) + "}"
}

// slotTags has one number for each slot that hashes to it.
var slotTags = sync.OnceValue(func() *[Slots]string {
	var tags [Slots]string
	for i, left := 0, Slots; left > 0; i++ {
		tag := strconv.Itoa(i)
		if s := Slot(tag); tags[s] == "" {
			tags[s] = tag
			left--
		}
	}
	return &tags
})

func slotTag(slot int) string { return slotTags()[slot] }

// Counters returns the beginning of the names of all counters.
func (n Prefix) Counters() string { return string(n) + Layout + "fence:" }

// Counted returns the key whose counter has this name: the inverse of Counter.
func (n Prefix) Counted(name string) (key string, ours bool) {
	lock, ours := strings.CutPrefix(name, n.Counters())
	if !ours {
		return "", false
	}
	if plain, ok := strings.CutPrefix(lock, ":"); ok {
		lock = plain
	} else if tag, rest, ok := strings.Cut(strings.TrimPrefix(lock, "{"), "}"); ok && rest == "" {
		lock = tag
	} else if ok {
		lock = rest // the tag stands for the key
	} else {
		return "", false
	}
	return strings.CutPrefix(lock, string(n))
}

// WaitQueue returns the name of the lock's wait queue.
func (n Prefix) WaitQueue(key string) string { return n.sibling("queue", key) }

// Readers returns the name of the set of those who share the lock.
func (n Prefix) Readers(key string) string { return n.sibling("readers", key) }

// Own returns the beginning of the names of waiters' own channels.
func (n Prefix) Own() string { return string(n) + Layout + "free:" }

// sibling returns a name that begins with the prefix, so that one ACL pattern covers
// all, and hashes to the lock's slot, so that one script of a Cluster may use both.
// Different locks have different names.
func (n Prefix) sibling(kind, key string) string {
	var room [nameRoom]byte
	return string(n.appendSibling(room[:0], kind, key))
}

const nameRoom = 320

func (n Prefix) appendSibling(b []byte, kind, key string) []byte {
	lock := key
	if n != "" {
		lock = string(n) + key
	}
	b = append(append(append(b, n...), Layout...), kind...)
	switch {
	case hashTag(lock) != lock:
		return append(append(b, "::"...), lock...)
	case !strings.Contains(lock, "}"):
		return append(append(append(b, ":{"...), lock...), '}')
	}
	// No hash tag can contain this key. A number that hashes to its slot replaces it.
	b = append(append(append(b, ":{"...), slotTag(Slot(lock))...), '}')
	return append(b, lock...)
}

// Texts are the names of one lock's keys, except the mark, and its value with one token.
type Texts struct {
	Key                             string
	Lock, Counter, WaitQueue, Value string // parts of one string

	prefix Prefix
	token  uint64
}

// Are reports whether t has the texts of this lock, owner and token.
func (t *Texts) Are(n Prefix, key, owner string, token uint64) bool {
	value, _, _ := strings.Cut(t.Value, "|")
	return t.Key == key && t.prefix == n && t.token == token && value == owner
}

// Texts returns the texts of a lock, with the value that it has with this owner and token.
func (n Prefix) Texts(key, owner string, token uint64) *Texts {
	var room [nameRoom]byte
	b := append(append(room[:0], n...), key...)
	ends := [3]int{len(b)}
	for i, kind := range [...]string{"fence", "queue"} {
		b = n.appendSibling(b, kind, key)
		ends[i+1] = len(b)
	}
	b = strconv.AppendUint(append(append(b, owner...), '|'), token, 10)
	all := string(b)
	return &Texts{
		Key: key, Lock: all[:ends[0]], Counter: all[ends[0]:ends[1]], WaitQueue: all[ends[1]:ends[2]], Value: all[ends[2]:],
		prefix: n, token: token,
	}
}

// CheckPrefix refuses a prefix with which the keys beside a lock cannot be named.
func CheckPrefix(prefix string) error {
	if len(prefix) >= driver.MaxKey {
		return driver.Invalid("prefix", "has %d bytes, and leaves none of the %d for the key", len(prefix), driver.MaxKey)
	}
	if strings.Contains(prefix, "{") && hashTag(prefix) == prefix {
		return driver.Invalid("prefix", "has a '{' without a whole hash tag such as {app}")
	}
	return nil
}

// hashTag returns the part of key that a Cluster hashes.
func hashTag(key string) string {
	_, rest, found := strings.Cut(key, "{")
	if !found {
		return key
	}
	tag, _, found := strings.Cut(rest, "}")
	if !found || tag == "" {
		return key
	}
	return tag
}

// Slots is the number of hash slots of a Cluster.
const Slots = 16384

// Slot returns the hash slot of key: CRC16 (XMODEM) of its tag.
func Slot(key string) int {
	var crc uint16
	for _, c := range []byte(hashTag(key)) {
		crc ^= uint16(c) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc % Slots)
}

// Parse splits the value of a lock into the owner, the length of the range of its tokens (zero: it
// has one), and the last token. The whole value of another library's lock is its owner; it has no
// token.
func Parse(value string) (owner string, tokens uint32, fence uint64) {
	owner, token, found := strings.Cut(value, "|")
	if !found || owner == "" || token == "" || token[0] == '0' || strings.Trim(token, "0123456789") != "" {
		return value, 0, 0
	}
	fence, err := strconv.ParseUint(token, 10, 64)
	if err != nil || fence > driver.MaxFence {
		return value, 0, 0
	}
	owner, tokens = base.Unranged(owner)
	return owner, tokens, fence
}
