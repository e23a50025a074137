// Package gocronlock lets schedulers of gocron (github.com/go-co-op/gocron/v2) on many hosts run each
// job once.
//
//	locks, err := dlock.OpenURL(os.Getenv("DLOCK_URL"))
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(
//		gocronlock.NewLocker(locks, dlock.WithMinHold(10*time.Second))))
//
// With a locker every job has its own lock, and any host may run it. With an elector one host
// runs all jobs, until it fails. The package is a module of its own: only programs that import
// it depend on gocron.
package gocronlock

import (
	"context"
	"errors"
	"sync"

	"github.com/go-co-op/gocron/v2"

	"github.com/redlock-go/redlock/dlock"
)

// NewLocker returns a gocron.Locker: a job runs on the host that gets the lock with the job's name,
// and is skipped by the others. Give every job a name (gocron.WithName), the same on all hosts.
//
// Because the hosts' clocks differ, a host may start a job that another host has already run.
// Use dlock.WithMinHold to keep the lock beyond the job's end, for longer than the difference
// of the clocks and shorter than the interval of the schedule.
//
// gocron does not tell a job that its lock is lost. A job that must stop after a loss calls
// dlock.Do itself. Locks are kept until the job ends, and renewed until then.
func NewLocker(l dlock.Locker, opts ...dlock.LockOption) gocron.Locker {
	return &locker{l, opts}
}

type locker struct {
	locks dlock.Locker
	opts  []dlock.LockOption
}

func (l *locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lease, err := l.locks.TryLock(ctx, key, l.opts...)
	if err != nil {
		return nil, err
	}
	return job{lease}, nil
}

// job is the lock of a job that runs.
type job struct{ lease *dlock.Lease }

func (j job) Unlock(context.Context) error { return j.lease.Unlock() }

// ErrNotLeader is returned by Elector.IsLeader if another host leads, or no host.
var ErrNotLeader = errors.New("gocronlock: this host does not lead")

// An Elector is a candidate for the leadership among all electors of its key. It is safe for
// concurrent use. Close it to resign.
type Elector struct {
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // why the campaign ended; valid after ended is closed

	mu    sync.Mutex
	lease *dlock.Lease // of the leadership; nil: there is none
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector starts to campaign for the lock named key, as dlock.Elect does: again after every
// loss, until Close.
func NewElector(l dlock.Locker, key string, opts ...dlock.LockOption) *Elector {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Elector{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(e.ended)
		e.err = dlock.Elect(ctx, l, key, func(term context.Context) error {
			lease, _ := dlock.LeaseFor(term, key)
			e.lead(lease)
			defer e.lead(nil)
			<-term.Done()
			return nil
		}, opts...)
	}()
	return e
}

func (e *Elector) lead(lease *dlock.Lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lease = lease
}

// IsLeader returns nil if this elector leads now, by its lease's deadline. Otherwise the error
// matches ErrNotLeader, and also the error that ended the campaign, if one did, such as
// ErrInvalid. It asks no server.
func (e *Elector) IsLeader(context.Context) error {
	select {
	case <-e.ended:
		return errors.Join(ErrNotLeader, e.err)
	default:
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lease == nil || e.lease.Err() != nil {
		return ErrNotLeader
	}
	return nil
}

// Close resigns, and returns when the lock has been released or will end by itself.
func (e *Elector) Close() error {
	e.cancel()
	<-e.ended
	if errors.Is(e.err, context.Canceled) {
		return nil
	}
	return e.err
}
