//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cli

import (
	"os"
	"syscall"
	"testing"
)

func TestAnOrderIsSentIfThereIsRoomAndNeverWaits(t *testing.T) {
	r, f, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // it was only read
	defer f.Close() //nolint:errcheck // nobody reads the rest
	w := &guardProcess{orders: f}
	w.send(syscall.SIGTERM)
	for range 1 << 17 { // more than a pipe holds
		w.send(syscall.SIGUSR1)
	}
	first := make([]byte, 1)
	if _, err := r.Read(first); err != nil || order(first[0]) != syscall.SIGTERM {
		t.Errorf("the first order is %v, %v", first, err)
	}
}
