package bench

import (
	"bytes"
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/redlock-go/redlock/redlocktest/fault"
)

// A counter counts the messages in one direction of a proxy.
type counter struct {
	mu       sync.Mutex
	rest     map[int64]*bytes.Buffer // of a message that is not complete, by connection
	messages int
	bytes    int
}

func (c *counter) judge(conn int64, chunk []byte) (int, fault.Action) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes += len(chunk)
	b := c.rest[conn]
	if b == nil {
		b = &bytes.Buffer{}
		c.rest[conn] = b
	}
	b.Write(chunk)
	for n := fault.RESP(b.Bytes()); n > 0; n = fault.RESP(b.Bytes()) {
		b.Next(n)
		c.messages++
	}
	return len(chunk), fault.Pass
}

// counted returns the sums.
func (c *counter) counted() (messages, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.messages, c.bytes
}

// countOnProxies counts what locks send through proxies.
func countOnProxies(ctx context.Context, e *entry, proxies []*fault.Proxy, locks int) *measurement {
	t := &measurement{}
	take := func(key string) bool {
		h, err := e.lockers[0].Lock(ctx, key, false)
		if err == nil {
			err = h.Unlock()
		}
		if err != nil {
			t.fail(err)
		}
		return err == nil
	}
	take("wire/first") // connects
	up := &counter{rest: map[int64]*bytes.Buffer{}}
	down := &counter{rest: map[int64]*bytes.Buffer{}}
	for _, p := range proxies {
		p.Judge(fault.ToServer, up.judge)
		p.Judge(fault.ToClient, down.judge)
	}
	settle(up) // of the first lock
	early, earlySent := up.counted()
	_, earlyReceived := down.counted()
	done := 0
	for i := range locks {
		if take("wire/" + strconv.Itoa(i)) {
			done++
		}
	}
	settle(up)
	for _, p := range proxies {
		p.Judge(fault.ToServer, nil)
		p.Judge(fault.ToClient, nil)
	}
	requests, sent := up.counted()
	_, received := down.counted()
	if done > 0 {
		t.add("requests", Count, float64(requests-early)/float64(done))
		t.add("sent", Bytes, float64(sent-earlySent)/float64(done))
		t.add("received", Bytes, float64(received-earlyReceived)/float64(done))
	}
	return t
}

// settle waits until what goes on in the background has come to rest.
func settle(c *counter) {
	for range 50 {
		before, _ := c.counted()
		time.Sleep(20 * time.Millisecond)
		if after, _ := c.counted(); after == before {
			return
		}
	}
}
