// Package drivertest has what the tests of this module's drivers share: calls that are repeated
// after unknown outcomes, which a busy machine causes, and scenes that several drivers must pass.
package drivertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Must ends the test after an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Refusal is the reason of a refusal, and empty for any other error.
func Refusal(err error) string {
	if no := (*driver.RefusedError)(nil); errors.As(err, &no) {
		return no.Reason
	}
	return ""
}

// WantErr checks that an error is another.
func WantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// WantRefused checks that an error is a permanent refusal whose text has all of parts.
func WantRefused(t testing.TB, what string, err error, parts ...string) {
	t.Helper()
	if no := (*driver.RefusedError)(nil); !errors.As(err, &no) || no.RetryAfter != 0 {
		t.Errorf("%s: got %v, want a permanent *RefusedError", what, err)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: the error does not say %q: %v", what, part, err)
		}
	}
}

// WantHeld checks that nobody can take a key with a request's mode now, and returns what is said of its
// holder.
func WantHeld(t testing.TB, b driver.Backend, req *driver.Request) driver.HeldError {
	t.Helper()
	_, err := Acquire(t, b, req)
	var held *driver.HeldError
	if !errors.As(err, &held) {
		t.Fatalf("Acquire of %q: got %v, want a *HeldError", req.Key, err)
	}
	return *held
}

// Verdict names what an error of a backend says: "granted" (nil), "held", "lost", "refused",
// "invalid" or "closed", and "unknown" for any other.
func Verdict(err error) string {
	if err == nil {
		return "granted"
	}
	for _, v := range []struct {
		is   error
		name string
	}{{driver.ErrHeld, "held"}, {driver.ErrLost, "lost"}, {driver.ErrRefused, "refused"}, {driver.ErrInvalid, "invalid"}, {driver.ErrClosed, "closed"}} {
		if errors.Is(err, v.is) {
			return v.name
		}
	}
	return "unknown"
}

// undecided reports whether a call must be repeated: its outcome is unknown, or it was refused
// for now.
func undecided(err error) bool {
	var no *driver.RefusedError
	v := Verdict(err)
	return v == "unknown" || v == "refused" && errors.As(err, &no) && no.RetryAfter > 0
}

const ownerLabel = "drivertest/"

// NewRequest returns a request for key by a new owner.
func NewRequest(key string, ttl time.Duration) *driver.Request {
	return &driver.Request{Key: key, Owner: ownerLabel + rand.Text(), TTL: ttl}
}

// Acquire makes attempts until the outcome of one is known, each by another owner: on a busy
// machine a server may leave an attempt without an answer. After such an attempt "held" may
// name that attempt as the holder, until it is undone. The error is the last attempt's.
func Acquire(t testing.TB, b driver.Backend, req *driver.Request) (driver.Lease, error) {
	t.Helper()
	return acquire(t, b, req, func(err error, _ bool) bool { return Verdict(err) != "unknown" })
}

// Grant takes a lock that is free, or waits for it if req.Wait is set. It tries again after an
// unknown outcome, as Acquire does, and after a temporary refusal; also after "held", if an
// earlier attempt of its own may be the holder. Any other outcome ends the test.
func Grant(t testing.TB, b driver.Backend, req *driver.Request) driver.Lease {
	t.Helper()
	l, err := acquire(t, b, req, func(err error, doubtful bool) bool {
		return !undecided(err) && (Verdict(err) != "held" || !doubtful)
	})
	if err != nil {
		t.Fatalf("Acquire of %q: %v", req.Key, err)
	}
	return l
}

// acquire makes attempts until known returns true, and returns the last answer. doubtful says
// that the outcome of an earlier attempt is unknown.
func acquire(t testing.TB, b driver.Backend, req *driver.Request, known func(err error, doubtful bool) bool) (l driver.Lease, err error) {
	t.Helper()
	attempt, doubtful, tries := *req, false, 0
	until(t, func() bool {
		if tries++; tries > 1 {
			attempt.Owner = fmt.Sprintf("%s/%d", req.Owner, tries)
		}
		if l, err = b.Acquire(t.Context(), &attempt); known(err, doubtful) {
			return true
		}
		doubtful = doubtful || Verdict(err) == "unknown"
		if tries < 20 {
			t.Log(err)
		}
		return false
	})
	return l, err
}

// Busy takes a lock and frees it, again and again, until stop is called.
func Busy(b driver.Backend, key string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for ctx.Err() == nil {
			if l, err := b.Acquire(context.WithoutCancel(ctx), NewRequest(key, time.Minute)); err == nil {
				_ = l.Release(context.WithoutCancel(ctx))
			}
		}
	}()
	return func() { cancel(); <-stopped }
}

// Waiter waits for a lock in the background. It sends the lease, or nil if the wait failed.
func Waiter(t testing.TB, b driver.Backend, req *driver.Request) <-chan driver.Lease {
	got := make(chan driver.Lease, 1)
	waiting := *req
	waiting.Wait = true
	go func() {
		l, err := Acquire(t, b, &waiting)
		if err != nil {
			t.Errorf("the wait for %q: %v", req.Key, err)
		}
		got <- l
	}()
	return got
}

// AwaitWaiters returns when at least n wait for a key.
func AwaitWaiters(t testing.TB, b driver.Inspector, key string, n int) {
	t.Helper()
	if !until(t, func() bool {
		s, err := b.Lookup(t.Context(), key)
		return err == nil && s.Waiters >= n
	}) {
		t.Fatalf("there are never %d waiters for %q", n, key)
	}
}

// AwaitFinding calls Check until a finding has this code, and returns the finding. It checks
// that the finding has a text, and, unless it is a note, a remedy.
func AwaitFinding(t testing.TB, b driver.Inspector, code string) (found driver.Diagnostic) {
	t.Helper()
	var all []driver.Diagnostic
	var err error
	if !until(t, func() bool {
		all, err = b.Check(t.Context())
		i := slices.IndexFunc(all, func(d driver.Diagnostic) bool { return d.Code == code })
		if i >= 0 {
			found = all[i]
		}
		return i >= 0
	}) {
		t.Fatalf("Check does not find %q, and says: %+v, %v", code, all, err)
	}
	if found.Summary == "" || found.Severity > driver.SeverityNote && found.Remedy == "" {
		t.Errorf("a finding says too little: %+v", found)
	}
	return found
}

// AwaitMended returns when Check of a backend no longer finds anything by a code.
func AwaitMended(t testing.TB, b driver.Inspector, code string) {
	t.Helper()
	if !until(t, func() bool {
		all, err := b.Check(t.Context())
		return err == nil && !slices.ContainsFunc(all, func(d driver.Diagnostic) bool { return d.Code == code })
	}) {
		t.Fatalf("Check still finds %q", code)
	}
}

// Renew renews a lease, again after each unknown outcome. The test fails unless a renewal
// succeeds before the lease's end.
func Renew(t testing.TB, l driver.Lease, ttl time.Duration) {
	t.Helper()
	settle(t, func() error {
		_, err := l.Renew(t.Context(), &driver.Renewal{TTL: ttl})
		if err != nil && time.Now().After(l.Grant().Expires) {
			t.Fatalf("the lease ended before a renewal was answered: %v", err)
		}
		return err
	}, func(bool) bool { return false })
}

// Release releases a lease, again after each unknown outcome. The test fails unless a release
// succeeds, or, after an unknown outcome or the lease's end, says "lost".
func Release(t testing.TB, l driver.Lease) {
	t.Helper()
	settle(t, func() error { return l.Release(t.Context()) },
		func(doubtful bool) bool { return doubtful || time.Now().After(l.Grant().Expires) })
}

// Known makes a call, again after each unknown outcome. The test fails unless it succeeds, or
// says "lost" after an unknown outcome: an earlier call may have had an effect.
func Known(t testing.TB, call func() error) {
	t.Helper()
	settle(t, call, func(doubtful bool) bool { return doubtful })
}

// settle makes a call until its outcome is known, and fails the test unless it succeeds, or says
// "lost" where that may be. doubtful says that the outcome of an earlier call is unknown.
func settle(t testing.TB, call func() error, mayBeLost func(doubtful bool) bool) {
	t.Helper()
	doubtful := false
	if !until(t, func() bool {
		err := call()
		switch {
		case err == nil, Verdict(err) == "lost" && mayBeLost(doubtful):
			return true
		case !undecided(err):
			t.Fatal(err)
		}
		doubtful = true
		t.Log(err)
		return false
	}) {
		t.Fatal("no call is answered")
	}
}

// patience is how long a condition may take on a busy machine.
const patience = 5 * time.Minute

// until calls done until it reports true. It reports false if the test ended meanwhile, or after
// patience.
func until(t testing.TB, done func() bool) bool {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !done() {
		select {
		case <-time.After(3 * time.Millisecond):
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// A NoticeLog keeps the notices of backends: Add is for driver.Config.Notify, All for
// redlocktest.Harness.Notices. Its zero value is empty, and its methods may be called
// concurrently.
type NoticeLog struct {
	mu  sync.Mutex
	all []driver.Notice
}

// Add keeps n.
func (l *NoticeLog) Add(n driver.Notice) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, n)
}

// All returns the notices so far.
func (l *NoticeLog) All() []driver.Notice { return l.Of("", "") }

// Of returns the notices so far of this kind, or of any if it is empty, whose Detail contains says.
func (l *NoticeLog) Of(kind string, says string) (found []driver.Notice) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.all {
		if (kind == "" || n.Kind == kind) && strings.Contains(n.Detail, says) {
			found = append(found, n)
		}
	}
	return found
}
