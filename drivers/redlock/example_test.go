package redlock_test

import (
	"context"
	"fmt"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/memory"
	_ "github.com/redlock-go/redlock/drivers/redlock"
)

// A client that pauses for longer than its lease writes too late. The store refuses the write
// because of its token: it keeps the largest token that it has seen, and refuses smaller ones.
func Example_fencing() {
	ctx := context.Background()
	var value string
	var largest uint64
	write := func(v string, fence uint64) string {
		if fence < largest {
			return "stale token"
		}
		value, largest = v, fence
		return "written"
	}
	client := func() *dlock.Client { // like another process
		c, err := dlock.OpenURL("redlock:memory:a,memory:b,memory:c")
		if err != nil {
			panic(err)
		}
		return c
	}
	slow, fast := client(), client()
	defer slow.Close() //nolint:errcheck // its lease is lost already
	defer fast.Close() //nolint:errcheck // it holds the lock to the end

	paused, err := slow.Lock(ctx, "account-7")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, name := range []string{"a", "b", "c"} { // the pause: its lease ends meanwhile
		node, err := dlock.OpenBackend("memory:" + name)
		if err != nil {
			fmt.Println(err)
			return
		}
		node.(*memory.Backend).Expire("account-7")
	}

	l, err := fast.Lock(ctx, "account-7")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("fast writes:", write("fast", l.Fence()))
	fmt.Println("slow wakes up and writes:", write("slow", paused.Fence()))
	fmt.Println("the store has:", value)
	// Output:
	// fast writes: written
	// slow wakes up and writes: stale token
	// the store has: fast
}
