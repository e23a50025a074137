//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"bufio"
	"os"
	"strings"
	"testing"
)

// Even on a slow machine an order is written if there is room for it.
func TestAnOrderIsNotLostHoweverSlowEitherSideIs(t *testing.T) {
	r, f, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // it was only read
	w := &guardProcess{orders: make(chan order, 64)}
	ended := make(chan struct{})
	w.send(order{End: true}) // before anybody writes
	go func() {
		defer close(ended)
		writeOrders(f, w.orders)
	}()
	for range 200 { // more than fit in, at times: send drops, and never blocks
		w.send(order{Signal: 1})
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil || !strings.Contains(line, `"End":true`) {
		t.Errorf("the first order is %q, %v", line, err)
	}
	close(w.orders)
	<-ended
}
