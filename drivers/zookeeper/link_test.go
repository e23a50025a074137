package zookeeper_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/fault"
)

// numbers are what an answer consists of, most significant bytes first.
func numbers(all ...any) (b []byte) {
	for _, n := range all {
		b, _ = binary.Append(b, binary.BigEndian, n)
	}
	return b
}

// TestAHostileServerEndsNothing: whatever a server sends neither ends the process nor takes all memory
// or all processor time.
func TestAHostileServerEndsNothing(t *testing.T) {
	t.Parallel()
	greeting := func(timeout int32) []byte {
		return numbers(int32(37), int32(0), timeout, int64(7), int32(16), make([]byte, 17))
	}
	answer := func(body []byte) []byte { // to the first request
		return append(numbers(int32(len(body)+16), int32(1), int64(5), int32(0)), body...)
	}
	stat := make([]byte, 68)
	fine := greeting(4000)
	for name, sent := range map[string][2][]byte{ // at the connection, and after the first request
		"a negative timeout":         {greeting(-1)},
		"no timeout":                 {greeting(0)},
		"a greeting of 4 GiB":        {numbers(uint32(1<<32 - 1))},
		"a short greeting":           {numbers(int32(3), int32(0))},
		"an answer of 4 GiB":         {fine, numbers(uint32(1<<32 - 1))},
		"an answer without a header": {fine, numbers(int32(4), int32(1))},
		"data of 2 GiB":              {fine, answer(append(numbers(int32(1<<31-1)), stat...))},
		"data without a description": {fine, answer(numbers(int32(0)))},
		"an event with a long path":  {fine, numbers(int32(28), int32(-1), int64(0), int32(0), int32(2), int32(3), int32(-1))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			t.Cleanup(func() { _ = l.Close() })
			var connections atomic.Int64
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					connections.Add(1)
					go func() {
						defer c.Close() //nolint:errcheck // a test
						for _, packet := range sent {
							if _, err := c.Read(make([]byte, 1000)); err != nil {
								return
							}
							_, _ = c.Write(packet)
						}
						_, _ = io.Copy(io.Discard, c)
					}()
				}
			}()
			b := open(t, "zk://"+l.Addr().String()+"?call_timeout=300ms")
			if _, err := b.Acquire(t.Context(), drivertest.NewRequest("k", 2*time.Second)); drivertest.Verdict(err) != "unknown" {
				t.Errorf("Acquire: %v", err)
			}
			if n := connections.Load(); n > 20 {
				t.Errorf("%d connections in 300 ms", n)
			}
		})
	}
}

// TestWaitsLeaveFewWatches: those that end leave one watch for each node, and it does not outlive the
// connection.
func TestWaitsLeaveFewWatches(t *testing.T) {
	t.Parallel()
	g := single(t)
	way := fault.NewProxy(t, g.Addrs()[0])
	path := "/" + t.Name()
	b := open(t, "zk://"+way.Addr()+path+"?call_timeout=30s")
	held := drivertest.Grant(t, b, drivertest.NewRequest("k", 2*time.Minute))
	var watches atomic.Int64 // that are asked for: getData is request 4, and ends with a byte for the watch
	way.Judge(fault.ToServer, func(_ int64, chunk []byte) (int, fault.Action) {
		if n := len(chunk); n > 12 && binary.BigEndian.Uint32(chunk[8:]) == 4 && chunk[n-1] == 1 {
			watches.Add(1)
		}
		return len(chunk), fault.Pass
	})
	for range 30 {
		r := drivertest.NewRequest("k", 2*time.Minute)
		r.Wait = true
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		_, err := b.Acquire(ctx, r)
		cancel()
		if err == nil {
			t.Fatal("a held lock was granted")
		}
	}
	if n := watches.Load(); n > 10 { // one, and those for entries of waits that ended just before
		t.Errorf("30 waits that ended left %d watches", n)
	}
	next := drivertest.NewRequest("k", 2*time.Minute)
	next.Wait = true
	waiting := drivertest.Waiter(t, b, next)
	drivertest.AwaitWaiters(t, b, "k", 1)
	for range 3 {
		way.CutAll() // another connection takes up the session, without watches
		drivertest.Renew(t, held, 2*time.Minute)
	}
	drivertest.Release(t, held)
	if l := <-waiting; l != nil {
		drivertest.Release(t, l)
	}
}
