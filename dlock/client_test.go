package dlock_test

import (
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// newClient returns a client of b that is closed at the end of the test.
func newClient(t *testing.T, b *memory.Backend, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	c, err := dlock.New(b, append([]dlock.Option{dlock.WithLogger(nil)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

func lock(t *testing.T, c dlock.Locker, key string, opts ...dlock.LockOption) *dlock.Lease {
	t.Helper()
	l, err := c.Lock(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func unlock(t *testing.T, l *dlock.Lease) {
	t.Helper()
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
}

func TestTheTTLOfAClientIsThatOfItsURLItsOptionsOrTheDefault(t *testing.T) {
	for url, want := range map[string]time.Duration{
		"memory:":           dlock.DefaultTTL,
		"memory:?ttl=7s":    7 * time.Second,
		"memory:opt?ttl=7s": 5 * time.Second,
	} {
		var opts []dlock.Option
		if want == 5*time.Second {
			opts = append(opts, dlock.WithTTL(want))
		}
		c, err := dlock.OpenURL(url, opts...)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.TTL(); got != want {
			t.Errorf("%s: TTL = %v, want %v", url, got, want)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	s := newSpy()
	s.info = func(i *driver.Info) { i.MinTTL, i.MaxTTL = 0, 0 }
	c, err := dlock.New(s)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // nothing was locked
	if got := c.TTL(); got != 0 {
		t.Errorf("a session without TTL: TTL = %v, want 0", got)
	}
}
