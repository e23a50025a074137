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
)

func TestUnusableClientsAreRefused(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer func() { _ = ring.Close() }()
	var none *redis.Client
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer func() { _ = client.Close() }()
	for name, open := range map[string]func() (*goredis.Backend, error){
		"a Ring":       func() (*goredis.Backend, error) { return goredis.New(ring, nil) },
		"a wrapper":    func() (*goredis.Backend, error) { return goredis.New(struct{ redis.UniversalClient }{ring}, nil) },
		"nil":          func() (*goredis.Backend, error) { return goredis.New(nil, nil) },
		"a nil client": func() (*goredis.Backend, error) { return goredis.New(none, nil) },
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

func TestAddressOfAClientShowsNoPassword(t *testing.T) {
	c := redis.NewClient(&redis.Options{Addr: "h:1", Username: "u", Password: "s3cr3t", DB: 2})
	defer func() { _ = c.Close() }()
	b, err := goredis.New(c, nil)
	drivertest.Must(t, err)
	if got := fmt.Sprint(b); got != "redis://h:1/2" || strings.Contains(fmt.Sprintf("%+v", b), "s3cr3t") {
		t.Errorf("got %q", got)
	}
}
