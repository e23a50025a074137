package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
	"github.com/redlock-go/redlock/drivers/redlock"
)

// store is a store that a lock protects. It keeps the largest token that it has seen, and
// refuses writes with a smaller one, because another owner has had the lock since.
type store struct {
	mu    sync.Mutex
	fence uint64
	value string
}

var errStale = errors.New("stale token")

func (s *store) write(value string, fence uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fence < s.fence {
		return errStale
	}
	s.fence, s.value = fence, value
	return nil
}

// A client that pauses for longer than its lease writes too late. The store refuses the write
// because of its token.
func Example_fencing() {
	nodes := []*memory.Backend{memory.New(), memory.New(), memory.New()}
	slow, fast := client(nodes), client(nodes)
	defer closeAll(slow, fast)
	ctx := context.Background()
	s := &store{}

	paused, err := slow.Lock(ctx, "account-7")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, n := range nodes {
		n.Expire("account-7") // the pause: its lease ends meanwhile
	}

	l, err := fast.Lock(ctx, "account-7")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("fast writes:", s.write("fast", l.Fence()))
	fmt.Println("slow wakes up and writes:", s.write("slow", paused.Fence()))
	fmt.Println("the store has:", s.value)
	// Output:
	// fast writes: <nil>
	// slow wakes up and writes: stale token
	// the store has: fast
}

// client returns a client with its own quorum on the nodes, like another process.
func client(nodes []*memory.Backend) *dlock.Client {
	var peers []driver.Backend
	for _, n := range nodes {
		peers = append(peers, n.Peer())
	}
	quorum, err := redlock.New(peers, nil)
	if err != nil {
		panic(err)
	}
	c, err := dlock.New(quorum)
	if err != nil {
		panic(err)
	}
	return c
}

func closeAll(clients ...*dlock.Client) {
	for _, c := range clients {
		_ = c.Close() // its leases are lost already
	}
}
