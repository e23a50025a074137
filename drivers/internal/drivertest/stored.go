package drivertest

import (
	"errors"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// RunStored checks a backend whose key k is held by what another program has stored: in both modes it is
// held, and it is seen and broken.
func RunStored(t *testing.T, b interface {
	driver.Backend
	driver.Inspector
	driver.Admin
}, shared bool) {
	t.Helper()
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		r := NewRequest("k", time.Minute)
		r.Mode = mode
		l, err := Acquire(t, b, r)
		switch both := shared && mode == driver.Shared; {
		case both && err == nil:
			Release(t, l)
		case both, !errors.Is(err, driver.ErrHeld):
			t.Errorf("Acquire (%v) beside what is stored (shared: %v): %v", mode, shared, err)
		}
	}
	var s *driver.State
	Known(t, func() (err error) { s, err = b.Lookup(t.Context(), "k"); return err })
	var listed []*driver.State
	Known(t, func() error {
		listed = nil
		return b.List(t.Context(), "", func(s *driver.State) bool { listed = append(listed, s); return true })
	})
	if len(s.Holders) != 1 || (s.Mode == driver.Shared) != shared || s.Holders[0].Fence == 0 || s.Holders[0].Fence > driver.MaxFence || s.Holders[0].Owner == "" {
		t.Fatalf("Lookup: %+v", s)
	}
	if len(listed) != 1 || listed[0].Key != "k" || len(listed[0].Holders) != 1 || listed[0].Holders[0].Fence != s.Holders[0].Fence {
		t.Errorf("Lookup: %+v; List: %+v", s, listed)
	}
	Known(t, func() error { return b.Break(t.Context(), "k", s.Holders[0]) })
}

// RunTokensOver takes the key k twice. Its tokens must be above last; if it must not be granted it is
// refused. may and must say whether it may, and must, be granted.
func RunTokensOver(t *testing.T, b driver.Backend, last uint64, may, must bool) {
	t.Helper()
	for range 2 {
		l, err := Acquire(t, b, NewRequest("k", time.Minute))
		switch {
		case err != nil && (must || !errors.Is(err, driver.ErrRefused)):
			t.Errorf("Acquire: %v", err)
		case err == nil && !may:
			t.Error("granted, though another program's data are stored")
		case err == nil && (l.Grant().Fence <= last || l.Grant().Fence > driver.MaxFence):
			t.Errorf("token %d after %d", l.Grant().Fence, last)
		}
		if err != nil {
			return
		}
		last = l.Grant().Fence
		Release(t, l)
	}
}
