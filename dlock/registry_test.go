package dlock_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// opener is a driver that notes what it is opened with.
type opener struct{ got *driver.Config }

func (o *opener) Open(cfg *driver.Config) (driver.Backend, error) {
	o.got = cfg
	return memory.New(), nil
}

var testDriver = &opener{}

func init() { dlock.Register("test", testDriver) }

func TestRegisterPanicsOnNilAndOnATakenName(t *testing.T) {
	for name, d := range map[string]driver.Driver{"nil": nil, "test": testDriver} {
		func() {
			defer func() {
				if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), name) {
					t.Errorf("%s: panic = %v, want one that names it", name, p)
				}
			}()
			dlock.Register(name, d)
		}()
	}
	if names := dlock.Drivers(); !slices.IsSorted(names) || !slices.Contains(names, "test") {
		t.Errorf("Drivers = %s, want them sorted", names)
	}
}

func TestTTLAndPrefixAreTakenOutOfTheDSN(t *testing.T) {
	for _, tt := range []struct{ url, rest, prefix, ttl string }{
		{"test:", "test:", "", "10s"},
		{"test://u:p@h:1/0", "test://u:p@h:1/0", "", "10s"},
		{"test://h/0?ttl=3s&a=b&prefix=app%3A", "test://h/0?a=b", "app:", "3s"},
		{"test://h/0?ttl=3s", "test://h/0", "", "3s"},
		{"test:name?prefix=a", "test:name", "a", "10s"},
		{"test:redis://a:1?x=1,redis://b:2,node_timeout=50ms,ttl=4s,prefix=p", "test:redis://a:1?x=1,redis://b:2,node_timeout=50ms", "p", "4s"},
		{"test:redis://a,ttl=4s", "test:redis://a", "", "4s"},
		{"test:redis://a,,redis://b", "test:redis://a,,redis://b", "", "10s"},
		{"test://h/0?a=b&&c=d", "test://h/0?a=b&c=d", "", "10s"},
	} {
		c, err := dlock.OpenURL(tt.url, dlock.WithLogger(nil))
		if err != nil {
			t.Errorf("%s: %v", tt.url, err)
			continue
		}
		if got := testDriver.got; got.DSN != tt.rest || got.Prefix != tt.prefix || c.TTL().String() != tt.ttl {
			t.Errorf("%s: the driver got %q and prefix %q; the TTL is %v", tt.url, got.DSN, got.Prefix, c.TTL())
		}
		_ = c.Close()
	}
}

func TestNodesGetThePrefixOfTheWhole(t *testing.T) {
	for _, prefix := range []string{"app:", ""} {
		c, err := dlock.OpenURL("test:?prefix="+prefix, dlock.WithLogger(nil))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		resolve := testDriver.got.Resolve
		for url, ok := range map[string]bool{
			"test:": true, "test:?prefix=" + prefix: true, "test:?prefix=other": false, "test:?ttl=1s": false, "nosuch:": false,
		} {
			b, err := resolve(url)
			if (err == nil) != ok {
				t.Errorf("%s with the prefix %q: %v", url, prefix, err)
			}
			if err != nil {
				wantInvalid(t, "", err)
				if strings.Contains(err.Error(), "dlock: ") {
					t.Errorf("%s: the whole's error begins with the package's name already: %v", url, err)
				}
				continue
			}
			if testDriver.got.Prefix != prefix {
				t.Errorf("%s: prefix %q, want %q", url, testDriver.got.Prefix, prefix)
			}
			_ = b.Close()
		}
	}
}

func TestBadInputIsNamedBeforeAnyIO(t *testing.T) {
	const canary = "s3cr3t"
	for what, url := range map[string]string{
		"URL":               canary,
		"begin with":        canary + "@host:6379",
		"a driver's name":   canary + ":x",
		"and a colon":       "memory",
		"nosuch":            "nosuch://u:" + canary + "@h",
		"forgotten import?": "nosuch://h",
		"of github.com/redlock-go/redlock/drivers/sqltable/mysql": "mariadb://h",
		`"ttl": must be`:     "test://u:" + canary + "@h?ttl=" + canary,
		"open test: ":        "test:?ttl=0s",
		`"ttl": must be a`:   "test:?ttl=-1s",
		`"ttl": is given`:    "test://u:" + canary + "@h?ttl=1s&ttl=2s",
		`"prefix": is not`:   "test://u:" + canary + "@h?prefix=%zz" + canary,
		"over the maximum":   "test://u:" + canary + "@h?ttl=999h",
		"under the minimum":  "test://u:" + canary + "@h?ttl=1ms",
		`"prefix": leaves`:   "test:?prefix=" + strings.Repeat("p", 512),
		"belongs to a clien": "\x00",
	} {
		if url == "\x00" {
			_, err := dlock.OpenBackend("test:?ttl=1s")
			wantInvalid(t, what, err)
			continue
		}
		c, err := dlock.OpenURL(url)
		wantInvalid(t, what, err)
		if c != nil {
			_ = c.Close()
		} else if strings.Contains(err.Error(), canary) {
			t.Errorf("%s: the error holds the password: %v", what, err)
		}
	}
	if _, err := dlock.Open(canary+" ", "test:"); err == nil || strings.Contains(err.Error(), canary) {
		t.Errorf("an impossible driver name: %v", err)
	}

	s := newSpy()
	for what, o := range map[string]dlock.Option{
		"WithTTL":        dlock.WithTTL(-1),
		"TTL":            dlock.WithTTL(time.Millisecond),
		"WithMaxHold":    dlock.WithMaxHold(-1),
		"WithMinHold":    dlock.WithMinHold(-1),
		"WithPassOn":     dlock.WithPassOn(-1),
		"WithOwnerLabel": dlock.WithOwnerLabel("a b"),
		"WithRequire":    dlock.WithRequire(driver.FeatureSession),
		"0x100000":       dlock.WithRequire(1 << 20),
		"option":         nil,
	} {
		_, err := dlock.New(s, o)
		wantInvalid(t, what, err)
	}
	_, err := dlock.New(nil)
	wantInvalid(t, "backend", err)

	c := newSpyClient(t, s)
	for what, f := range map[string]func() error{
		"empty":     func() error { _, err := c.TryLock(t.Context(), ""); return err },
		"513 bytes": func() error { _, err := c.Lock(t.Context(), strings.Repeat("k", 513)); return err },
		"1ms":       func() error { _, err := c.Lock(t.Context(), "k", dlock.WithTTL(time.Millisecond)); return err },
		"25h":       func() error { _, err := c.Lock(t.Context(), "k", dlock.WithTTL(25*time.Hour)); return err },
		"option":    func() error { _, err := c.TryLock(t.Context(), "k", nil); return err },
	} {
		wantInvalid(t, what, f())
	}
	prefixed, err := dlock.OpenURL("test:?prefix=12345")
	if err != nil {
		t.Fatal(err)
	}
	defer prefixed.Close()
	_, err = prefixed.TryLock(t.Context(), strings.Repeat("k", 508))
	wantInvalid(t, "513 bytes with its prefix", err)
	if n := s.acquires.Load(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}

	plain := newSpy()
	plain.hide = driver.FeatureShared
	_, err = newSpyClient(t, plain).Lock(t.Context(), "k", dlock.WithShared())
	wantInvalid(t, "no shared mode", err)
	_, err = dlock.New(plain, dlock.WithShared())
	wantInvalid(t, "no shared mode", err)

	session := newSpy()
	session.session(nil)
	_, err = newSpyClient(t, session).Lock(t.Context(), "k", dlock.WithTTL(time.Second))
	wantInvalid(t, "TTL", err)
	_, err = dlock.New(session, dlock.WithTTL(time.Second))
	wantInvalid(t, "TTL", err)
	_, err = dlock.New(session, dlock.WithTTL(0))
	wantInvalid(t, "WithTTL", err)
	_, err = dlock.New(session, dlock.WithMargin(time.Second))
	wantInvalid(t, "no deadline", err)
}

func TestOwnersNamesBeginWithTheirLabel(t *testing.T) {
	host, err := os.Hostname()
	if err != nil || strings.ContainsAny(host, " |") {
		t.Fatalf("the machine's name is %q: %v", host, err)
	}
	long := strings.Repeat("!~", 32)
	for label, ok := range map[string]bool{"": false, long: true, long + "x": false, "a|b": false, "a\x7f": false, "é": false} {
		if _, err := dlock.New(newSpy(), dlock.WithOwnerLabel(label)); err == nil != ok {
			t.Errorf("%q: %v", label, err)
		}
	}
	s := newSpy()
	c := newSpyClient(t, s)
	unlock(t, lock(t, c, "k"))
	if want := fmt.Sprintf("%.40s", host); !strings.HasPrefix(s.owners[0], want) || !strings.Contains(s.owners[0], fmt.Sprint("/", os.Getpid(), "/")) {
		t.Errorf("owner %q, want host/pid", s.owners[0])
	}
}

func wantInvalid(t *testing.T, what string, err error) {
	t.Helper()
	var bad *driver.InvalidError
	if !errors.As(err, &bad) || !errors.Is(err, dlock.ErrInvalid) || errors.Is(err, dlock.ErrUnavailable) {
		t.Errorf("%s: got %v, want an *InvalidError", what, err)
	} else if !strings.Contains(err.Error(), what) {
		t.Errorf("the error does not name %q: %v", what, err)
	}
}

func TestADefaultTTLFitsTheBackendAndAnOptionGoesBeforeTheURL(t *testing.T) {
	for most, want := range map[time.Duration]time.Duration{time.Hour: dlock.DefaultTTL, 5 * time.Second: 5 * time.Second, 0: 0} {
		s := newSpy()
		s.info = func(i *driver.Info) { i.MinTTL, i.MaxTTL = 0, most }
		if got := newSpyClient(t, s).TTL(); got != want {
			t.Errorf("TTL = %v of at most %v, want %v", got, most, want)
		}
	}
	c, err := dlock.OpenURL("test:?ttl=7s", dlock.WithTTL(5*time.Second))
	if err != nil || c.TTL() != 5*time.Second {
		t.Fatalf("the option: %v", err)
	}
	_ = c.Close()
}
