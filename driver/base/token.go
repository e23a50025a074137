package base

import (
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// ParseBase reads a base of tokens that a driver has stored: its layout and the number, with a space
// between them. path is where it is stored, for the error.
func ParseBase(stored, layout, path string) (uint64, error) {
	version, number, _ := strings.Cut(stored, " ")
	value, err := strconv.ParseUint(number, 10, 64)
	if version != layout || err != nil || value > driver.MaxFence {
		return 0, UnknownLayout(path)
	}
	return value, nil
}

// UnknownLayout is the refusal for what is stored under a path, and is not this driver's.
func UnknownLayout(path string) error {
	return &driver.RefusedError{Reason: "another program, or another release of this driver, has stored something under " + strconv.Quote(path) +
		" in a layout that this one does not know: use that release, or another path"}
}

// EntryValue is what a driver stores for an owner: its layout, a number from which the token follows, and
// the owner of so many tokens.
func EntryValue(layout string, number uint64, owner string, tokens uint32) string {
	return layout + "|" + strconv.FormatUint(number, 10) + "|" + Ranged(owner, tokens)
}

// ParseEntry is the inverse of EntryValue. Other texts are not ok.
func ParseEntry(stored, layout string) (number uint64, owner string, tokens uint32, ok bool) {
	version, rest, _ := strings.Cut(stored, "|")
	text, owner, _ := strings.Cut(rest, "|")
	number, err := strconv.ParseUint(text, 10, 64)
	ok = version == layout && err == nil && number <= driver.MaxFence && owner != ""
	owner, tokens = Unranged(owner)
	return number, owner, tokens, ok
}

// NextBase returns the base of the next token, which is that base plus an index that the server raises
// with every write; index is the highest one that was seen. It is the base as it is stored, or one with
// which the token is not behind now+ahead, if the token would be behind now by more than lag, or if
// no base is stored.
func NextBase(base, index uint64, stored bool, now time.Time, lag, ahead time.Duration) (uint64, error) {
	us := uint64(max(now.UnixMicro(), 0))
	if index > driver.MaxFence || us < index || us > driver.MaxFence/2 {
		return 0, &driver.RefusedError{Reason: "the servers' clock, " + now.UTC().Format(time.RFC3339) + ", or their index, " +
			strconv.FormatUint(index, 10) + ", is out of the range of tokens: set the clock"}
	}
	if stored && us <= base+index+uint64(lag.Microseconds()) {
		return base, nil
	}
	return max(us+uint64(ahead.Microseconds())-index, base), nil
}
