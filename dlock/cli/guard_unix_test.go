//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"bufio"
	"os"
	"strings"
	"testing"
)

// The guard starts the command when it gets its first order: one that is lost, since
// this machine is slow, would be a command that never runs under a lock that never ends.
func TestAnOrderIsNotLostHoweverSlowEitherSideIs(t *testing.T) {
	r, f, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // it was only read
	w := &guardProcess{orders: make(chan order, 64)}
	ended := make(chan struct{})
	w.send(order{Times: true, Kill: 1}) // before anybody writes
	go func() {
		defer close(ended)
		writeOrders(f, w.orders)
	}()
	for range 200 { // more than fit in, at times: send drops, and never blocks
		w.send(order{Signal: 1})
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil || !strings.Contains(line, `"Kill":1`) {
		t.Errorf("the first order is %q, %v", line, err)
	}
	close(w.orders)
	<-ended
}
