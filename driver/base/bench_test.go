package base_test

import (
	"context"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// BenchmarkCall measures what a call and a lease cost beside the requests to a server.
func BenchmarkCall(b *testing.B) {
	c := &base.Calls{Name: "kv"}
	defer c.Close()
	begin := func(b *testing.B, ctx context.Context) *base.Call {
		call, err := c.Begin(ctx, time.Second)
		if err != nil {
			b.Fatal(err)
		}
		return call
	}
	user, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.Run("begin and end", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			begin(b, context.Background()).End()
		}
	})
	b.Run("as a context", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			call := begin(b, user)
			call.Done()
			call.End()
		}
	})
	b.Run("release of a lease", func(b *testing.B) {
		b.ReportAllocs()
		release := func(*base.Call) error { return nil }
		for b.Loop() {
			if err := base.NewLease(c, driver.Info{}, driver.Grant{}, nil, release).Release(user); err != nil {
				b.Fatal(err)
			}
		}
	})
}
