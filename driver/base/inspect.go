package base

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Given returns the options that o points to, or the zero value if it is nil.
func Given[T any](o *T) (opt T) {
	if o != nil {
		opt = *o
	}
	return opt
}

// CheckPrefix returns a *driver.InvalidError if the prefix leaves no bytes for keys.
func CheckPrefix(prefix string) error {
	if len(prefix) >= driver.MaxKey {
		return driver.Invalid("prefix", "has %d bytes, and leaves none of the %d for keys", len(prefix), driver.MaxKey)
	}
	return nil
}

// Ranged returns the owner under which a backend stores a grant of so many tokens.
func Ranged(owner string, tokens uint32) string {
	if tokens <= 1 {
		return owner
	}
	return owner + "+" + strconv.FormatUint(uint64(tokens), 10)
}

// Unranged is the inverse of Ranged. One token is zero tokens.
func Unranged(stored string) (owner string, tokens uint32) {
	if i := strings.LastIndexByte(stored, '+'); i > 0 {
		n, err := strconv.ParseUint(stored[i+1:], 10, 32)
		if owner := stored[:i]; err == nil && n <= driver.MaxTokens && Ranged(owner, uint32(n)) == stored {
			return owner, uint32(n)
		}
	}
	return stored, 0
}

// An Entry is one place in a server's queue for a key: a holder, or a waiter.
type Entry struct {
	driver.Holder
	Mode driver.Mode
}

// maxQueue is how many waiters a State names.
const maxQueue = 100

// QueueState returns the state of a key whose entries wait in this order. The first holds the key,
// and if it is shared, so do the shared ones right behind it.
func QueueState(key string, fence uint64, entries []Entry) *driver.State {
	s := &driver.State{Key: key, Fence: fence}
	for i, e := range entries {
		switch {
		case i == 0, s.Waiters == 0 && s.Mode == driver.Shared && e.Mode == driver.Shared:
			s.Mode = entries[0].Mode
			s.Holders = append(s.Holders, e.Holder)
			continue
		case len(s.Queue) < maxQueue:
			s.Queue = append(s.Queue, driver.Holder{Owner: e.Owner, Since: e.Since, Address: e.Address})
		}
		s.Waiters++
	}
	return s
}

// ClockOffset returns by how much the server's clock is ahead of this machine's; negative: behind
// it. The request was sent at this instant, and its answer has just been read. Half of the time in
// between, margin, is the greatest error.
func ClockOffset(server, sent time.Time) (offset, margin time.Duration) {
	margin = time.Since(sent) / 2
	return server.Sub(sent.Round(0).Add(margin)), margin
}

// Findings are the findings of one Check.
type Findings struct {
	Node string // of each finding
	list []driver.Diagnostic
}

// Add adds a finding, and returns it, so that the caller can set Measured and Command.
func (f *Findings) Add(code string, s driver.Severity, remedy, format string, args ...any) *driver.Diagnostic {
	f.list = append(f.list, driver.Diagnostic{Code: code, Severity: s, Node: f.Node, Summary: fmt.Sprintf(format, args...), Remedy: remedy})
	return &f.list[len(f.list)-1]
}

// Clock adds a warning if the server's clock and this machine's certainly differ by more than a
// second.
func (f *Findings) Clock(server, sent time.Time) {
	offset, margin := ClockOffset(server, sent)
	if offset.Abs() > margin+time.Second {
		d := f.Add("clock-offset", driver.SeverityWarning, "run NTP on both", "the server's clock and this machine's differ by %v; leases do not depend on it, but tokens of other backends may be out of order with these", offset.Round(time.Millisecond))
		d.Measured = offset.Round(time.Millisecond).String()
	}
}

// Members adds a warning if a cluster with this many voting members does not survive the loss of one,
// or the backend knows one address of several.
func (f *Findings) Members(voters, addresses int) {
	switch {
	case voters < 3:
		f.Add("few-members", driver.SeverityWarning, "run three or five members", "the cluster does not survive the loss of a member").Measured = strconv.Itoa(max(voters, 1))
	case addresses == 1:
		f.Add("one-address", driver.SeverityWarning, "name all members in the URL, separated by commas", "the backend knows the address of one member").
			Measured = "1 of " + strconv.Itoa(voters)
	}
}

// Result returns the findings, the gravest first, for the error that ended the examination, or nil.
// A permanent refusal is a finding itself, and any other error means that Check failed.
func (f *Findings) Result(err error) ([]driver.Diagnostic, error) {
	if refused := (*driver.RefusedError)(nil); errors.As(err, &refused) && refused.RetryAfter == 0 {
		f.Add("refused", driver.SeverityUnsafe, "remove this cause, or use another server", "no lock is granted: %v", err)
		err = nil
	}
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(f.list, func(x, y driver.Diagnostic) int { return int(y.Severity) - int(x.Severity) })
	return f.list, nil
}
