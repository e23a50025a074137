package etcd_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/fault"
)

func TestAnErrorSaysEachFactOnce(t *testing.T) {
	t.Parallel()
	way := fault.NewProxy(t, single(t).Addrs()[0])
	b := open(t, "etcd://"+way.Addr()+"/"+t.Name()+"?call_timeout=500ms")
	drivertest.RunErrors(t, b, "etcd", func() error { way.Pause(); return nil }, func() error { way.Resume(); return nil })
	way.Pause()
	defer way.Resume()
	r := drivertest.NewRequest("waited for", time.Minute)
	r.Wait = true
	if _, err := b.Acquire(t.Context(), r); err == nil || strings.Contains(err.Error(), "context") {
		t.Errorf("the caller's context goes on, and a wait ends with %v", err)
	}
}

// TestAnAnswerOfAnotherFormIsUnknown: a server that leaves out what was asked for does not end the process.
func TestAnAnswerOfAnotherFormIsUnknown(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*etcdserverpb.TxnResponse){
		"no answers": func(r *etcdserverpb.TxnResponse) { r.Responses = nil },
		"no header":  func(r *etcdserverpb.TxnResponse) { r.Header = nil },
		"refused":    func(r *etcdserverpb.TxnResponse) { r.Succeeded, r.Responses = false, nil },
	} {
		var spoils atomic.Bool
		b := with(t, single(t), func(ctx context.Context, method string, req, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := invoke(ctx, method, req, reply, c, opts...)
			if r, ok := reply.(*etcdserverpb.TxnResponse); ok && spoils.Load() {
				spoil(r)
			}
			return err
		})
		l := drivertest.Grant(t, b, drivertest.NewRequest(name, time.Minute))
		spoils.Store(true)
		for _, key := range []string{name, "another than " + name} {
			if _, err := b.Acquire(t.Context(), drivertest.NewRequest(key, time.Minute)); drivertest.Verdict(err) != "unknown" {
				t.Errorf("%s: Acquire: %v", name, err)
			}
		}
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); drivertest.Verdict(err) != "unknown" {
			t.Errorf("%s: Renew: %v", name, err)
		}
		spoils.Store(false)
		drivertest.Release(t, l)
	}
}
