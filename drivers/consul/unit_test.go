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

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
