package redlock

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/ownprocess"
	"github.com/redlock-go/redlock/drivers/internal/redisnode"
	"github.com/redlock-go/redlock/drivers/memory"
)

// stallProcess stops this whole process for a while, if it has one processor: Go's scheduler
// does not know of this system call, and cannot preempt it.
//
//go:nosplit
func stallProcess(ts *syscall.Timespec) {
	for {
		_, _, errno := syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(ts)), uintptr(unsafe.Pointer(ts)), 0)
		if errno != syscall.EINTR { // an interrupted call leaves the rest in ts
			return
		}
	}
}

// slowNode answers after a while, but no later than its context, as a driver does. A test may
// make its calls begin with something else.
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

func (n slowNode) Bootstrap(ctx context.Context, s *quorum.Bootstrap) (*quorum.MemoryReport, error) {
	if err := n.call(ctx, "meet"); err != nil {
		return nil, err
	}
	return &quorum.MemoryReport{Memory: quorum.MemoryUnguarded}, nil
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

// oneProcessor is for a process that may stand still: see stallProcess.
const oneProcessor = "GOMAXPROCS=1"

// The nodes answer within milliseconds, but this process does not run for twice their timeout:
// in each phase, either before its requests are sent or while the answers are in transit.
func TestAProcessThatDoesNotRunBlamesNoNode(t *testing.T) {
	ownprocess.Run(t, func(t *testing.T) {
		for _, phase := range []string{"meet", "acquire", "raise", "renew", "release"} {
			for name, after := range map[string]time.Duration{"before": 0, "while": time.Millisecond} {
				t.Run(phase+"/"+name, func(t *testing.T) {
					untilUnblamed(t, func() error { return stalledIn(t, phase, after, 1) })
				})
			}
		}
	}, oneProcessor)
}

// The stall does not make the breaker skip a node either.
func TestAProcessThatDoesNotRunSkipsNoNode(t *testing.T) {
	ownprocess.Run(t, func(t *testing.T) {
		untilUnblamed(t, func() error { return stalledIn(t, "acquire", time.Millisecond, tripAfter+1) })
	}, oneProcessor)
}

// A node that starts its calls is not blamed either: its answers are read when this process
// runs again.
func TestAProcessThatDoesNotRunBlamesNoNodeThatStartsCalls(t *testing.T) {
	ownprocess.Run(t, func(t *testing.T) {
		const nodeTimeout = 80 * time.Millisecond
		for name, after := range map[string]time.Duration{"before": 0, "while": time.Millisecond} {
			if testing.Short() && name == "before" {
				continue
			}
			t.Run(name, func(t *testing.T) {
				untilUnblamed(t, func() error {
					b, servers := unmet(t, &Options{Guard: -1, NodeTimeout: nodeTimeout}, func(n *redisnode.Node) driver.Backend { return n })
					if err := holdAndRenew(t, b); err != nil {
						return err
					}
					for i := range 6 { // for an acquire and its release
						var due atomic.Bool
						due.Store(true)
						before := func() {
							if due.Swap(false) {
								time.AfterFunc(after, func() {
									ts := syscall.NsecToTimespec(int64(2 * nodeTimeout))
									stallProcess(&ts)
								})
							}
						}
						for _, s := range servers {
							s.takes.Store(int64(5 * time.Millisecond))
							s.before.Store(&before)
						}
						l, err := b.Acquire(t.Context(), request1("k", fmt.Sprint("web/", i), 10*time.Second))
						if err != nil {
							return fmt.Errorf("acquire: %w", err)
						}
						due.Store(true)
						if err := l.Release(t.Context()); err != nil {
							return fmt.Errorf("release: %w", err)
						}
					}
					if s := b.Stats(); s.NodeSkips > 0 || s.Unreleased > 0 {
						return fmt.Errorf("%+v", s)
					}
					return nil
				})
			})
		}
	}, oneProcessor)
}

// untilUnblamed tries a few times, because other processes may keep this one from running for
// longer than is excused. Each try begins with nodes of its own.
func untilUnblamed(t *testing.T, try func() error) {
	var err error
	for range 20 {
		if err = try(); err == nil {
			return
		}
	}
	t.Error(err)
}

// stalledIn takes leases one after the other. In the given phase of each, this process does not
// run for a while. It returns the failures that are reported of nodes.
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
	if n := calls.Load(); n > int64(3*leases) && phase != "raise" { // a straggler is raised later
		return fmt.Errorf("three nodes were asked %d times to %s", n, phase)
	}
	if s := b.Stats(); s.NodeSkips > 0 || s.Unreleased > 0 {
		return fmt.Errorf("%+v", s)
	}
	return nil
}
