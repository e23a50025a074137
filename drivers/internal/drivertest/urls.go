package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// A URLCase is a URL, and the outcome of an attempt to lock with it.
type URLCase struct {
	URL  string
	Want string // as of Verdict; "invalid" is what Open says
	Says string // a part of the error's text
}

// RunURLs checks that a driver distinguishes mistakes of its users, refusals by the servers,
// and failures of the servers; each case is a parallel subtest. A bad URL is "invalid", a wrong
// password or a read-only server is "refused", and a server that is down or hangs is "unknown".
// The answer comes within limit: the URL's call timeout, and some time for a slow machine. No
// error and no other printed text has the secret in the URLs; each error is one line.
//
// On a busy machine an attempt may be left without an answer, or answered late. Then another
// attempt follows. The case fails after a definite answer other than the wanted one, or if no
// attempt within several minutes took less than ten times the limit.
func RunURLs(t *testing.T, d driver.Driver, secret string, limit time.Duration, cases map[string]URLCase) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var said []any
			b, err := d.Open(&driver.Config{DSN: c.URL})
			if err == nil {
				defer b.Close() //nolint:errcheck // its servers may be away
				said = append(said, b, b.Info().Name)
				err = attemptInTime(t, b, c.Want, limit)
				if i, ok := b.(driver.Inspector); ok {
					found, failed := i.Check(t.Context())
					said = append(said, found, failed)
				}
			}
			if got := Verdict(err); got != c.Want || err != nil && !strings.Contains(err.Error(), c.Says) {
				t.Errorf("the outcome is %s, and not %s %q: %v", got, c.Want, c.Says, err)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("the error has several lines: %q", err)
			}
			for _, x := range append(said, err) {
				if text := fmt.Sprintf("%v %+v", x, x); secret != "" && strings.Contains(text, secret) {
					t.Errorf("the secret is shown: %s", text)
				}
			}
		})
	}
}

// RunBadURLs checks that Open refuses URLs, each with an error that names this part of it and does not
// have the word "secret".
func RunBadURLs(t *testing.T, d driver.Driver, parts map[string]string) {
	t.Helper()
	for url, part := range parts {
		_, err := d.Open(&driver.Config{DSN: url})
		var bad *driver.InvalidError
		if !errors.As(err, &bad) || !strings.Contains(bad.What, part) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// attemptInTime makes attempts until one has the outcome want within limit, or refutes the case.
func attemptInTime(t *testing.T, b driver.Backend, want string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	fastest := patience
	for tries := 1; ; tries++ {
		start := time.Now()
		l, err := b.Acquire(ctx, &driver.Request{
			Key: fmt.Sprint(t.Name(), tries), Owner: fmt.Sprint(ownerLabel, tries), TTL: min(time.Minute, b.Info().MaxTTL),
		})
		took := time.Since(start)
		if err == nil {
			Release(t, l)
		}
		got := Verdict(err)
		if got == want {
			fastest = min(fastest, took)
		}
		switch {
		case got == want && took <= limit, got != want && got != "unknown":
			return err
		case ctx.Err() != nil:
			if fastest > 10*limit {
				t.Errorf("no answer came within %v: %v after %v", limit, err, fastest)
			}
			return err
		}
		t.Logf("%v after %v", err, took)
	}
}
