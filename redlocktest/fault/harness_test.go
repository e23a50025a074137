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
)

// asker is a backend whose Acquire sends a line and waits for its echo. Each line has a number, so
// that an earlier call's echo, which may be late, is not taken for the answer.
type asker struct {
	conn   net.Conn
	r      *bufio.Reader
	calls  int
	closed int
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

func (a *asker) Close() error {
	a.closed++
	return a.conn.Close()
}

func harnessOf(e *echo) (h func() (driver.Backend, error), faults func(b driver.Backend) (partition, heal, drop func() error), count func() (int, error)) {
	all := Harness(e.addr, func(addr string) (driver.Backend, error) {
		c, err := net.Dial("tcp", addr)
		return &asker{conn: c, r: bufio.NewReader(c)}, err
	})
	return all.Open, func(b driver.Backend) (partition, heal, drop func() error) {
		f := all.Faults
		return func() error { return f.Partition(b) }, func() error { return f.Heal(b) }, func() error { return f.DropReply(b) }
	}, all.Connections
}

func TestAHarnessBreaksTheLinkOfOneBackend(t *testing.T) {
	e := newEcho(t)
	open, faults, count := harnessOf(e)
	a, err := open()
	must(t, err)
	b, err := open()
	must(t, err)
	within := func(b driver.Backend, d time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		_, err := b.Acquire(ctx, &driver.Request{Key: "key"})
		return err
	}
	must(t, within(a, patience))
	must(t, within(b, patience))
	if n, err := count(); n != 2 || err != nil {
		t.Errorf("%d connections, %v", n, err)
	}
	partition, heal, drop := faults(a)
	must(t, partition())
	if err := within(a, brief); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a call through a partition ended with %v", err)
	}
	must(t, within(b, patience))
	must(t, heal())
	must(t, within(a, patience)) // the echo that the partition held back has arrived
	must(t, drop())
	if err := within(a, patience); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a reply is dropped, and its connection not cut: %v", err)
	}
	must(t, a.Close())
	must(t, b.Close())
	if n, err := count(); n != 0 || err != nil {
		t.Errorf("%d connections are left, %v", n, err)
	}
	if got := Unwrap(a).(*asker).closed; got != 1 {
		t.Errorf("the backend was closed %d times", got)
	}
	stranger, _, _ := faults(Unwrap(a))
	if err := stranger(); err == nil || !strings.Contains(err.Error(), "asker") {
		t.Errorf("a fault of a backend that the harness does not know: %v", err)
	}
	if Unwrap(Unwrap(b)) != Unwrap(b) {
		t.Error("Unwrap changes a backend that the harness has not wrapped")
	}
}

// TestAHarnessCountsTheConnectionsThatAClientKeeps: what a client has closed counts no more, though
// the server learns of it only when the partition ends.
func TestAHarnessCountsTheConnectionsThatAClientKeeps(t *testing.T) {
	open, faults, count := harnessOf(newEcho(t))
	a, err := open()
	must(t, err)
	_, err = a.Acquire(t.Context(), &driver.Request{Key: "key"})
	must(t, err)
	partition, _, _ := faults(a)
	must(t, partition())
	if n, _ := count(); n != 1 {
		t.Errorf("%d connections", n)
	}
	must(t, Unwrap(a).(*asker).conn.Close())
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if n, _ := count(); n == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("a connection that its client has closed behind a partition counts still")
		}
	}
	_ = a.Close()
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
