package redisnode

import (
	"strconv"
	"strings"
	"sync"

	"github.com/redlock-go/redlock/driver"
)

// layout begins the name of whatever is stored beside the locks, after the prefix.
// The number is the version of the layout, which is frozen: a release that stores
// something else uses another.
const layout = "redlock1:"

// names makes the names of what belongs to a lock.
type names struct{ prefix string }

// lock returns the name of the lock itself: exactly what the user said.
func (n names) lock(key string) string { return n.prefix + key }

// counter returns the name of the lock's fencing counter.
func (n names) counter(key string) string { return n.sibling("fence", key) }

// mark returns the name of what the counters of a server have in common: of a Cluster's slot,
// where one script may use both.
func (n names) mark(key string, cluster bool) string {
	base := n.prefix + layout + "mark"
	if !cluster {
		return base
	}
	if hashTag(n.prefix+"x") != n.prefix+"x" {
		return base // the prefix has a tag, and so all is in one slot
	}
	return base + ":{" + slotTag(Slot(n.lock(key))) + "}"
}

// slotTags are numbers that hash to each slot.
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

// counters returns what the names of all counters begin with.
func (n names) counters() string { return n.prefix + layout + "fence:" }

// counted returns the key whose counter has this name: the inverse of counter.
func (n names) counted(name string) (key string, ours bool) {
	lock, ours := strings.CutPrefix(name, n.counters())
	if !ours {
		return "", false
	}
	if plain, ok := strings.CutPrefix(lock, ":"); ok {
		lock = plain
	} else if tag, rest, ok := strings.Cut(strings.TrimPrefix(lock, "{"), "}"); ok && rest == "" {
		lock = tag
	} else if ok {
		lock = rest // the tag stands in
	} else {
		return "", false
	}
	return strings.CutPrefix(lock, n.prefix)
}

// channel returns the name of the channel on which releases are announced.
func (n names) channel(key string) string { return n.sibling("free", key) }

// waitQueue returns the name of the line of those who wait for the lock.
func (n names) waitQueue(key string) string { return n.sibling("line", key) }

// own returns what the names of waiters' own channels begin with; no key's channel does.
func (n names) own() string { return n.prefix + layout + "free:" }

// sibling returns a name that begins with the prefix, so that one ACL pattern covers
// all, and hashes to the lock's slot, so that one script of a Cluster may use both.
// Different locks have different names.
func (n names) sibling(kind, key string) string {
	var room [nameRoom]byte
	return string(n.appendSibling(room[:0], kind, key))
}

const nameRoom = 320

func (n names) appendSibling(b []byte, kind, key string) []byte {
	lock := key
	if n.prefix != "" {
		lock = n.prefix + key
	}
	b = append(append(append(b, n.prefix...), layout...), kind...)
	switch {
	case hashTag(lock) != lock:
		return append(append(b, "::"...), lock...)
	case !strings.Contains(lock, "}"):
		return append(append(append(b, ":{"...), lock...), '}')
	}
	// No tag can spell this one. A number that hashes to its slot stands in.
	b = append(append(append(b, ":{"...), slotTag(Slot(lock))...), '}')
	return append(b, lock...)
}

// siblings are the names of what stands beside one lock, but for the mark.
type siblings struct{ counter, channel, waitQueue string }

// of makes them, and the lock's own name and its value with this token, in one string.
func (s *siblings) of(n names, key, owner string, token uint64) (lock, value string) {
	var room [nameRoom]byte
	b := append(append(room[:0], n.prefix...), key...)
	ends := [4]int{len(b)}
	for i, kind := range [...]string{"fence", "free", "line"} {
		b = n.appendSibling(b, kind, key)
		ends[i+1] = len(b)
	}
	b = strconv.AppendUint(append(append(b, owner...), '|'), token, 10)
	all := string(b)
	s.counter, s.channel, s.waitQueue = all[ends[0]:ends[1]], all[ends[1]:ends[2]], all[ends[2]:ends[3]]
	return all[:ends[0]], all[ends[3]:]
}

// plain returns what sibling's names begin with for a lock without braces; they end with "}".
func (n names) plain(kind string) string { return n.prefix + layout + kind + ":{" }

// reserved reports whether key would collide with what stands beside locks.
func reserved(key string) bool { return strings.HasPrefix(key, layout) }

// checkPrefix refuses a prefix that leaves no way to name what stands beside a lock.
func checkPrefix(prefix string) error {
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
