package redlock

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// stallProcess lets nothing of this process run for a while, where it has one processor: Go's
// scheduler does not know of this system call, and there is no point at which it could take the
// processor away.
//
//go:nosplit
func stallProcess(ts *syscall.Timespec) {
	for {
		_, _, errno := syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(ts)), uintptr(unsafe.Pointer(ts)), 0)
		if errno != syscall.EINTR { // which leaves in ts what is left
			return
		}
	}
}

// slowNode answers after a while, but no later than its context, as a driver does. What it
// does may begin with something else.
type slowNode struct {
	driver.Backend
	before func(call string)
}

func (n slowNode) String() string { return n.Backend.(fmt.Stringer).String() }

func (n slowNode) call(ctx context.Context, name string) error {
	n.before(name)
	t := time.NewTimer(5 * time.Millisecond)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func (n slowNode) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if err := n.call(ctx, "acquire"); err != nil {
		return nil, err
	}
	l, err := n.Backend.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	return slowLease{l, n}, nil
}

func (n slowNode) Bootstrap(ctx context.Context, s *driver.Bootstrap) (*driver.MemoryReport, error) {
	if err := n.call(ctx, "meet"); err != nil {
		return nil, err
	}
	return &driver.MemoryReport{Memory: driver.MemoryUnguarded}, nil
}

type slowLease struct {
	driver.Lease
	n slowNode
}

func (l slowLease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	name := "renew"
	if r.MinFence > l.Grant().Fence {
		name = "raise"
	}
	if err := l.n.call(ctx, name); err != nil {
		return driver.Grant{}, err
	}
	return l.Lease.Renew(ctx, r)
}

func (l slowLease) Release(ctx context.Context) error {
	if err := l.n.call(ctx, "release"); err != nil {
		return err
	}
	return l.Lease.Release(ctx)
}

// The nodes answer within milliseconds, and this process does not run for twice their
// timeout: in each phase, before its requests are sent and while the answers are on their way.
func TestAProcessThatDoesNotRunBlamesNoNode(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, phase := range []string{"meet", "acquire", "raise", "renew", "release"} {
		for name, after := range map[string]time.Duration{"before": 0, "while": time.Millisecond} {
			t.Run(phase+"/"+name, func(t *testing.T) {
				untilUnblamed(t, func() error { return stalledIn(t, phase, after, 1) })
			})
		}
	}
}

// Nor is a node skipped for that.
func TestAProcessThatDoesNotRunSkipsNoNode(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	untilUnblamed(t, func() error { return stalledIn(t, "acquire", time.Millisecond, tripAfter+1) })
}

// untilUnblamed tries a few times: other processes may keep this one from running for longer
// than is excused.
func untilUnblamed(t *testing.T, try func() error) {
	var err error
	for range 5 {
		if err = try(); err == nil {
			return
		}
	}
	t.Error(err)
}

// stalledIn has leases go through a phase in which this process does not run for a while, and
// returns what was said against the nodes.
func stalledIn(t *testing.T, phase string, after time.Duration, leases int) error {
	const ttl, nodeTimeout = 10 * time.Second, 80 * time.Millisecond
	var due atomic.Bool
	var calls atomic.Int64
	stall := func() {
		ts := syscall.NsecToTimespec(int64(2 * nodeTimeout))
		stallProcess(&ts)
	}
	var nodes []driver.Backend
	for i := range 3 {
		store := memory.New()
		if phase == "raise" { // the nodes' tokens differ
			r := request1("k", fmt.Sprint("before/", i), time.Second)
			r.FenceFloor = uint64(time.Now().Add(driver.FenceSlack/2).UnixMicro()) + uint64(10*i)
			l, err := store.Acquire(t.Context(), r)
			if err == nil {
				err = l.Release(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		nodes = append(nodes, slowNode{store, func(call string) {
			if call != phase {
				return
			}
			calls.Add(1)
			switch {
			case !due.Swap(false):
			case after == 0:
				stall()
			default:
				time.AfterFunc(after, stall)
			}
		}})
	}
	b, err := New(nodes, &Options{NodeTimeout: nodeTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	for range leases {
		due.Store(true)
		l, err := b.Acquire(t.Context(), request1("k", "web/x", ttl))
		if err != nil {
			return fmt.Errorf("acquire: %w", err)
		}
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: ttl}); err != nil {
			return fmt.Errorf("renew: %w", err)
		}
		if err := l.Release(t.Context()); err != nil {
			return fmt.Errorf("release: %w", err)
		}
		if phase != "meet" && due.Load() {
			t.Fatalf("there was no %s", phase)
		}
	}
	if n := calls.Load(); n > int64(3*leases) && phase != "raise" { // a straggler is lifted later
		return fmt.Errorf("three nodes were asked %d times to %s", n, phase)
	}
	if s := b.Stats(); s.Trips > 0 || s.Unreleased > 0 {
		return fmt.Errorf("%+v", s)
	}
	return nil
}
