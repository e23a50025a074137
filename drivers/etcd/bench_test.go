package etcd_test

import (
	"context"
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/etcd"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func Benchmark(b *testing.B) {
	g := server.Etcd(b, 1)
	b.Run("ours", func(b *testing.B) {
		redlocktest.RunBenchmarks(b, redlocktest.Harness{Open: func() (driver.Backend, error) {
			return etcd.Driver{}.Open(&driver.Config{DSN: urlOf(g)})
		}})
	})
	b.Run("concurrency", func(b *testing.B) {
		redlocktest.RunBenchmarks(b, redlocktest.Harness{Open: func() (driver.Backend, error) { return openMutexes(g) }})
	})
}

// mutexes are locks of etcd's own package, with one session for all of a client.
type mutexes struct {
	driver.Backend // for what is not measured
	client         *clientv3.Client
	session        *concurrency.Session
}

func openMutexes(g *server.Group) (*mutexes, error) {
	c, err := connect(g)
	if err != nil {
		return nil, err
	}
	s, err := concurrency.NewSession(c, concurrency.WithTTL(10))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	b, err := etcd.New(c, nil)
	return &mutexes{b, c, s}, err
}

func (m *mutexes) Close() error {
	return errors.Join(m.Backend.Close(), m.session.Close(), m.client.Close())
}

func (m *mutexes) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	mutex := concurrency.NewMutex(m.session, "/mutexes/"+req.Key)
	lock := mutex.TryLock
	if req.Wait {
		lock = mutex.Lock
	}
	if err := lock(ctx); err != nil {
		if errors.Is(err, concurrency.ErrLocked) {
			return nil, &driver.HeldError{}
		}
		return nil, err
	}
	return mutexLease{mutex}, nil
}

type mutexLease struct{ *concurrency.Mutex }

func (mutexLease) Grant() driver.Grant { return driver.Grant{} }

// Renew is what the session does by itself.
func (mutexLease) Renew(context.Context, *driver.Renewal) (driver.Grant, error) {
	return driver.Grant{}, nil
}

func (l mutexLease) Release(ctx context.Context) error { return l.Unlock(ctx) }
