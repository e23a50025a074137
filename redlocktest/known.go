package redlocktest

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Verdict names what an error of a backend says: "granted" (nil), "held", "lost", "refused",
// "invalid" or "closed", and "unknown" for any other.
func Verdict(err error) string {
	switch v := classify(err); v {
	case granted:
		return "granted"
	case held:
		return "held"
	case lost:
		return "lost"
	case refused, later:
		return "refused"
	case invalid:
		return "invalid"
	case closed:
		return "closed"
	default:
		return "unknown"
	}
}

// NewRequest returns a request for key by a new owner.
func NewRequest(key string, ttl time.Duration) *driver.Request {
	return &driver.Request{Key: key, Owner: ownerLabel + rand.Text(), TTL: ttl}
}

// Acquire makes attempts until the outcome of one is known, each by another owner: on a busy
// machine a server may leave an attempt without an answer. After such an attempt "held" may
// name that attempt as the holder, until it is undone. The error is the last attempt's.
func Acquire(t testing.TB, b driver.Backend, req *driver.Request) (driver.Lease, error) {
	t.Helper()
	return acquire(t, b, req, func(v verdict, _ bool) bool { return v != unknown })
}

// Grant takes a lock that is free, or waits for it if req.Wait is set. It tries again after an
// unknown outcome, as Acquire does, and after a temporary refusal; also after "held", if an
// earlier attempt of its own may be the holder. Any other outcome ends the test.
func Grant(t testing.TB, b driver.Backend, req *driver.Request) driver.Lease {
	t.Helper()
	l, err := acquire(t, b, req, func(v verdict, doubtful bool) bool {
		return v != unknown && v != later && (v != held || !doubtful)
	})
	if err != nil {
		t.Fatalf("Acquire of %q: %v", req.Key, err)
	}
	return l
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
	var last any
	if !until(t, func() bool {
		all, err := b.Check(t.Context())
		last = err
		if err == nil {
			last = all
		}
		i := slices.IndexFunc(all, func(d driver.Diagnostic) bool { return d.Code == code })
		if i >= 0 {
			found = all[i]
		}
		return i >= 0
	}) {
		t.Fatalf("Check does not find %q, and says: %+v", code, last)
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
	if !until(t, func() bool {
		_, err := l.Renew(t.Context(), &driver.Renewal{TTL: ttl})
		switch v := classify(err); {
		case err == nil:
			return true
		case v != unknown && v != later:
			t.Fatalf("Renew: %v", err)
		case time.Now().After(l.Grant().Expires):
			t.Fatalf("the lease ended before a renewal was answered: %v", err)
		}
		t.Log(err)
		return false
	}) {
		t.Fatal("no renewal is answered")
	}
}

// Release releases a lease, again after each unknown outcome. The test fails unless a release
// succeeds, or, after an unknown outcome or the lease's end, says "lost".
func Release(t testing.TB, l driver.Lease) {
	t.Helper()
	doubtful := false
	if !until(t, func() bool {
		err := l.Release(t.Context())
		v := classify(err)
		if err == nil || v == lost && (doubtful || time.Now().After(l.Grant().Expires)) {
			return true
		}
		if v != unknown && v != later {
			t.Fatalf("Release: %v", err)
		}
		doubtful = true
		t.Log(err)
		return false
	}) {
		t.Fatal("no release is answered")
	}
}

// Known makes a call, again after each unknown outcome. The test fails unless it succeeds, or
// says "lost" after an unknown outcome: an earlier call may have had an effect.
func Known(t testing.TB, call func() error) {
	t.Helper()
	doubtful := false
	if !until(t, func() bool {
		err := call()
		v := classify(err)
		if err == nil || v == lost && doubtful {
			return true
		}
		if v != unknown && v != later {
			t.Fatal(err)
		}
		doubtful = true
		t.Log(err)
		return false
	}) {
		t.Fatal("no call is answered")
	}
}

// acquire makes attempts until known returns true, and returns the last answer. doubtful says
// that the outcome of an earlier attempt is unknown.
func acquire(t testing.TB, b driver.Backend, req *driver.Request, known func(v verdict, doubtful bool) bool) (l driver.Lease, err error) {
	t.Helper()
	attempt, doubtful, tries := *req, false, 0
	until(t, func() bool {
		if tries++; tries > 1 {
			attempt.Owner = fmt.Sprintf("%s/%d", req.Owner, tries)
		}
		l, err = b.Acquire(t.Context(), &attempt)
		v := classify(err)
		if known(v, doubtful) {
			return true
		}
		doubtful = doubtful || v == unknown
		if tries < 20 {
			t.Log(err)
		}
		return false
	})
	return l, err
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
		case <-time.After(poll):
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// A NoticeLog keeps the notices of backends: Add is for driver.Config.Notify, All for
// Harness.Notices. Its zero value is empty, and its methods may be called concurrently.
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
func (l *NoticeLog) All() []driver.Notice {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]driver.Notice(nil), l.all...)
}

// Of returns the notices so far of this kind whose Detail contains says.
func (l *NoticeLog) Of(kind driver.NoticeKind, says string) []driver.Notice {
	return slices.DeleteFunc(l.All(), func(n driver.Notice) bool { return n.Kind != kind || !strings.Contains(n.Detail, says) })
}
