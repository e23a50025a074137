package valkeygo_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/valkeygo"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestUnusableClientsAreRefused(t *testing.T) {
	if _, err := valkeygo.New(nil, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("nil: got %v, want ErrInvalid", err)
	}
}

// A wrapper is an application's, which measures calls, say.
type wrapper struct{ valkey.Client }

func TestAWrappedClientOfAClusterIsTakenForWhatItIs(t *testing.T) {
	t.Parallel()
	s := server.Valkey(t, server.WithCluster())
	if _, err := s.Do("CLUSTER", "ADDSLOTSRANGE", "0", "16383"); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		reply, err := s.Do("CLUSTER", "INFO")
		drivertest.Must(t, err)
		if strings.Contains(reply.(string), "cluster_state:ok") {
			break
		}
	}
	c, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{s.Addr()}})
	drivertest.Must(t, err)
	t.Cleanup(c.Close)
	b, err := valkeygo.New(&wrapper{c}, &valkeygo.Options{CallTimeout: 10 * time.Second})
	drivertest.Must(t, err)
	t.Cleanup(func() { _ = b.Close() })
	for i := range 10 {
		key := fmt.Sprint("k", i)
		l, err := b.Acquire(t.Context(), &driver.Request{Key: key, Owner: "o", TTL: time.Minute})
		drivertest.Must(t, err)
		if _, err := b.Watch(t.Context(), key); err != nil {
			t.Error(err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
