package goredis_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestUnusableClientsAreRefused(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer func() { _ = ring.Close() }()
	var none *redis.Client
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = client.Close() }()
	for name, open := range map[string]func() (*goredis.Backend, error){
		"a Ring":                  func() (*goredis.Backend, error) { return goredis.New(ring, nil) },
		"a Ring behind a wrapper": func() (*goredis.Backend, error) { return goredis.New(&wrapper{redis.UniversalClient(ring)}, nil) },
		"a Ring behind two": func() (*goredis.Backend, error) {
			return goredis.New(struct{ redis.UniversalClient }{&wrapper{ring}}, nil)
		},
		"a wrapper that shows nothing": func() (*goredis.Backend, error) { return goredis.New(opaque{}, nil) },
		"nil":                          func() (*goredis.Backend, error) { return goredis.New(nil, nil) },
		"a nil client":                 func() (*goredis.Backend, error) { return goredis.New(none, nil) },
		"a bad timeout": func() (*goredis.Backend, error) {
			return goredis.New(client, &goredis.Options{CallTimeout: time.Microsecond})
		},
		"a bad prefix": func() (*goredis.Backend, error) { return goredis.New(client, &goredis.Options{Prefix: "{"}) },
	} {
		if _, err := open(); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
}

// A wrapper is an application's, which measures calls, say.
type wrapper struct{ redis.UniversalClient }

// opaque keeps its client out of sight.
type opaque struct{ redis.UniversalClient }

func TestAWrappedClientIsTakenForWhatItIs(t *testing.T) {
	s := server.Redis(t)
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), DB: 3})
	defer func() { _ = c.Close() }()
	b, err := goredis.New(&wrapper{c}, nil)
	drivertest.Must(t, err)
	defer func() { _ = b.Close() }()
	if got := b.String(); !strings.HasSuffix(got, s.Addr()+"/3") {
		t.Errorf("its address is %q", got)
	}
	if _, err := b.Watch(t.Context(), "k"); err != nil {
		t.Error(err)
	}
	l, err := b.Acquire(t.Context(), &driver.Request{Key: "k", Owner: "o", TTL: time.Minute})
	drivertest.Must(t, err)
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAddressOfAClientShowsNoPassword(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: "h:1", Username: "u", Password: "s3cr3t", DB: 2})
	defer func() { _ = c.Close() }()
	b, err := goredis.New(c, nil)
	drivertest.Must(t, err)
	if got := fmt.Sprint(b); got != "redis://h:1/2" || strings.Contains(fmt.Sprintf("%+v", b), "s3cr3t") {
		t.Errorf("got %q", got)
	}
}
