package fault

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
)

// asker is a backend whose Acquire sends a line and waits for its echo. Each line has a number, so
// that an earlier call's echo, which may be late, is not taken for the answer.
type asker struct {
	conn  net.Conn
	r     *bufio.Reader
	calls int
}

func (a *asker) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	a.calls++
	line := fmt.Sprintf("%d %s\n", a.calls, req.Key)
	if _, err := io.WriteString(a.conn, line); err != nil {
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	_ = a.conn.SetReadDeadline(deadline)
	for {
		if got, err := a.r.ReadString('\n'); got == line || err != nil {
			return nil, err
		}
	}
}

func (a *asker) Info() driver.Info { return driver.Info{Name: "asker"} }

func (a *asker) Close() error { return a.conn.Close() }

func harnessOf(e *echo) redlocktest.Harness {
	return Harness(e.addr, func(addr string) (driver.Backend, error) {
		c, err := net.Dial("tcp", addr)
		return &asker{conn: c, r: bufio.NewReader(c)}, err
	})
}

func TestAHarnessBreaksTheLinkOfOneBackend(t *testing.T) {
	e := newEcho(t)
	h := harnessOf(e)
	a, err := h.Open()
	must(t, err)
	b, err := h.Open()
	must(t, err)
	within := func(b driver.Backend, d time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		_, err := b.Acquire(ctx, &driver.Request{Key: "key"})
		return err
	}
	must(t, within(a, patience))
	must(t, within(b, patience))
	if n, err := h.Connections(); n != 2 || err != nil {
		t.Errorf("%d connections, %v", n, err)
	}
	must(t, h.Faults.Partition(a))
	if err := within(a, brief); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a call through a partition ended with %v", err)
	}
	must(t, within(b, patience))
	must(t, h.Faults.Heal(a))
	must(t, within(a, patience)) // the echo that the partition held back has arrived
	must(t, h.Faults.DropReply(a))
	if err := within(a, patience); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a reply is dropped, and its connection not cut: %v", err)
	}
	for _, b := range []driver.Backend{a, b} {
		must(t, b.Close())
		must(t, h.Closed(b))
		must(t, h.Closed(b)) // it may be told twice
	}
	if n, err := h.Connections(); n != 0 || err != nil {
		t.Errorf("%d connections are left, %v", n, err)
	}
	if err := h.Faults.Partition(a); err == nil || !strings.Contains(err.Error(), "asker") {
		t.Errorf("a fault of a backend that the harness does not know: %v", err)
	}
}

// TestAHarnessCountsTheConnectionsThatAClientKeeps: what a client has closed counts no more, though
// the server learns of it only when the partition ends.
func TestAHarnessCountsTheConnectionsThatAClientKeeps(t *testing.T) {
	h := harnessOf(newEcho(t))
	a, err := h.Open()
	must(t, err)
	_, err = a.Acquire(t.Context(), &driver.Request{Key: "key"})
	must(t, err)
	must(t, h.Faults.Partition(a))
	if n, _ := h.Connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
	must(t, a.Close())
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if n, _ := h.Connections(); n == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a connection that its client has closed behind a partition counts still")
		}
	}
	must(t, h.Closed(a))
}

// The leak check after all tests completes this test: no proxy is left.
func TestAHarnessWhoseOpenFailsLeavesNothing(t *testing.T) {
	h := HarnessOf([]string{"127.0.0.1:1", "127.0.0.1:2"}, func(via []string) (driver.Backend, error) {
		if len(via) != 2 {
			t.Errorf("opened by %q", via)
		}
		return nil, errors.New("no")
	})
	if _, err := h.Open(); err == nil || err.Error() != "no" {
		t.Errorf("Open: %v", err)
	}
}
