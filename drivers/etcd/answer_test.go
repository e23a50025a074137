package etcd_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/redlock-go/redlock/redlocktest/fault"
)

// TestTheLostAnswerIsThatOfThePut: a connection's settings and pings pass, and the answer to Put
// is lost after Put has taken effect.
func TestTheLostAnswerIsThatOfThePut(t *testing.T) {
	t.Parallel()
	g := single(t)
	p := fault.NewProxy(t, g.Addrs()[0])
	p.Judge(fault.ToClient, fault.LoseAnswer(fault.ProtocolHTTP2, fault.Cut)) // before the settings of the connection
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{p.Addr()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // a test
	direct, err := connect(g)
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close() //nolint:errcheck // a test
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := c.Put(ctx, t.Name(), "value"); err == nil {
		t.Error("the answer to Put arrives")
	}
	if got, err := direct.Get(ctx, t.Name()); err != nil || len(got.Kvs) != 1 {
		t.Errorf("the request whose answer is lost had no effect: %v, %v", got, err)
	}
}
