// Package gocronlock lets schedulers of gocron (github.com/go-co-op/gocron/v2) on many hosts run each
// job once.
//
//	locks, err := dlock.OpenURL(os.Getenv("DLOCK_URL"))
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(
//		gocronlock.NewLocker(locks, dlock.WithMinHold(10*time.Second))))
//
// Every job has its own lock, and any host may run it. Where one host is to run all jobs, until it
// fails, start the scheduler inside dlock.Elect. The package is a module of its own: only programs
// that import it depend on gocron.
package gocronlock

import (
	"context"

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
