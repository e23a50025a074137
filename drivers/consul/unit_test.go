package consul

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
)

// TTLs are rounded up to few classes, by a quarter at most.
func TestClassesOfTTLs(t *testing.T) {
	seen := map[int]bool{}
	for ttl := time.Second; ttl <= maxTTL; ttl += 500 * time.Millisecond {
		n := class(ttl)
		seen[n] = true
		if got := time.Duration(n) * time.Second; got < ttl || got > max(ttl*5/4, ttl+time.Second) {
			t.Fatalf("%v is in the class %v", ttl, got)
		}
	}
	if len(seen) > 64 {
		t.Errorf("there are %d classes", len(seen))
	}
}

// A base that a stranger wrote, and that would overflow the token, is none.
func TestATokenOverflowsNothing(t *testing.T) {
	if got := holder(&api.KVPair{CreateIndex: math.MaxUint64 - 2, ModifyIndex: 9, Value: entry("o", 5)}).Fence; got != 9 {
		t.Errorf("an index that overflows: token %d", got)
	}
	for base, want := range map[uint64]uint64{5: 12, driver.MaxFence - 7: driver.MaxFence, driver.MaxFence - 6: 9, math.MaxUint64: 9, math.MaxUint64 - 6: 9} {
		p := &api.KVPair{CreateIndex: 7, ModifyIndex: 9, Value: entry("o", base)}
		if got := holder(p).Fence; got != want {
			t.Errorf("base %d: token %d, want %d", base, got, want)
		}
	}
}

// An answer that no server gives is an error, ends no application, and its index is not remembered.
func TestAnAnswerOfNoServer(t *testing.T) {
	for _, said := range []string{`{"Results":[]}`, `{"Results":[null]}`, `{"Errors":[null]}`, `null`, `[null]`,
		fmt.Sprintf(`{"Results":[{"KV":{"Key":"dlock/k","ModifyIndex":%d}}]}`, uint64(driver.MaxFence+1))} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/session/create") {
				fmt.Fprint(w, `{"ID":"s"}`)
				return
			}
			fmt.Fprint(w, said)
		}))
		b, err := Driver{}.Open(&driver.Config{DSN: "consul://" + strings.TrimPrefix(s.URL, "http://")})
		drivertest.Must(t, err)
		if _, err := b.Acquire(t.Context(), drivertest.NewRequest("k", time.Minute)); err == nil || b.(*Backend).seen.Load() != 0 {
			t.Errorf("%s: %v; seen %d", said, err, b.(*Backend).seen.Load())
		}
		_ = b.(driver.Inspector).List(t.Context(), "", func(*driver.State) bool { return true })
		_ = b.Close()
		s.Close()
	}
}

// An attempt that left nothing is not undone: in an outage, Close would take it for an answer of a server,
// and wait for all that cannot be undone.
func TestCloseInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var outage atomic.Pointer[net.OpError]
		outage.Store(&net.OpError{Op: "read", Err: errors.New("connection reset")})
		c, err := api.NewClient(&api.Config{HttpClient: &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, "/txn") {
				return nil, outage.Load()
			}
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{"ID":"s"}`))}, nil
		})}})
		drivertest.Must(t, err)
		b, err := New(c, nil)
		drivertest.Must(t, err)
		attempt := func() { _, _ = b.Acquire(t.Context(), drivertest.NewRequest("k", time.Minute)) }
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(attempt) // in doubt
		}
		wg.Wait()
		outage.Store(&net.OpError{Op: "dial", Err: errors.New("connection refused")})
		for from := time.Now(); time.Since(from) < time.Minute; {
			attempt() // sent to no server
		}
		from := time.Now()
		drivertest.Must(t, b.Close())
		if took := time.Since(from); took > 3*time.Second {
			t.Errorf("Close takes %v", took)
		}
	})
}

// TestALockThatMayNotBeReleasedEnds: its holder has lost the permission, and its session is not renewed for
// it. Neither is one for an attempt in doubt. Other users of the session keep it.
func TestALockThatMayNotBeReleasedEnds(t *testing.T) {
	for _, granted := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var said atomic.Value // to transactions; empty: nothing
			said.Store("")
			var destroyed atomic.Bool
			var requests atomic.Int64
			c, err := api.NewClient(&api.Config{HttpClient: &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
				requests.Add(1)
				code, body := http.StatusOK, `[{"ID":"s"}]`
				switch path := r.URL.Path; {
				case strings.HasSuffix(path, "/txn"):
					if body = said.Load().(string); body == "" {
						return nil, &net.OpError{Op: "read", Err: errors.New("connection reset")}
					} else if !strings.HasPrefix(body, "{") {
						code = http.StatusForbidden
					}
				case strings.HasSuffix(path, "/session/create"):
					body = `{"ID":"s"}`
				case strings.HasSuffix(path, "/session/destroy/s"):
					destroyed.Store(true)
				case strings.HasSuffix(path, "/session/info/s") && destroyed.Load():
					body = "[]"
				}
				return &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}, nil
			})}})
			drivertest.Must(t, err)
			b, err := New(c, nil)
			drivertest.Must(t, err)
			other := b.join(time.Minute)
			if granted {
				said.Store(`{"Results":[{"KV":{"Key":"dlock/k","CreateIndex":5,"ModifyIndex":5,"Session":"s"}},{"KV":{"Key":"dlock/.dlock/base","ModifyIndex":5}}]}`)
				l := drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute))
				said.Store("Permission denied")
				if err := l.Release(t.Context()); drivertest.Verdict(err) != "refused" {
					t.Errorf("Release without the permission: %v", err)
				}
			} else {
				if _, err := b.Acquire(t.Context(), drivertest.NewRequest("k", time.Minute)); drivertest.Verdict(err) != "unknown" {
					t.Errorf("Acquire without an answer: %v", err)
				}
				synctest.Wait()
				said.Store("rate limit reached") // the next try may succeed
				time.Sleep(10 * time.Second)
				if b.join(time.Minute) != other {
					t.Error("a session is retired by a server that has too much to do")
				}
				other.leave()
				said.Store("Permission denied")
			}
			time.Sleep(time.Hour)
			if destroyed.Load() {
				t.Error("a session with a user was destroyed")
			}
			other.leave()
			time.Sleep(time.Minute)
			if !destroyed.Load() {
				t.Errorf("granted %v: the session goes on", granted)
			}
			requests.Store(0)
			time.Sleep(time.Hour)
			if n := requests.Load(); n != 0 {
				t.Errorf("%d requests for a lock that has ended", n)
			}
			drivertest.Must(t, b.Close())
		})
	}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
