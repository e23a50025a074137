package trackrecord

import (
	"context"
	"errors"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	client "github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
)

// redsyncLocks are locks on a majority of the servers of a URL.
type redsyncLocks struct {
	*redsync.Redsync
	clients  []*client.Client
	failFast bool
}

func openRedsync(u *dsn.URL) (locks, error) {
	r := &redsyncLocks{failFast: u.Params.Bool("fail_fast", false)}
	inTime := u.Params.Bool("context_timeout", false)
	var pools []redis.Pool
	for _, host := range u.Hosts {
		c := client.NewClient(&client.Options{Addr: host, Username: u.User, Password: u.Password, ContextTimeoutEnabled: inTime})
		r.clients, pools = append(r.clients, c), append(pools, goredis.NewPool(c))
	}
	r.Redsync = redsync.New(pools...)
	return r, nil
}

func (r *redsyncLocks) close() {
	for _, c := range r.clients {
		_ = c.Close()
	}
}

func (r *redsyncLocks) lock(ctx context.Context, key string, req *driver.Request) (*lease, error) {
	mutex := func(ttl time.Duration, value string) *redsync.Mutex {
		return r.NewMutex(key, redsync.WithExpiry(ttl), redsync.WithValue(value), redsync.WithFailFast(r.failFast))
	}
	m := mutex(req.TTL, "")
	try := m.TryLockContext
	if req.Wait {
		try = m.LockContext
	}
	if err := try(ctx); err != nil {
		return nil, redsyncVerdict(err, &driver.HeldError{})
	}
	return &lease{
		grant: driver.Grant{Expires: redsyncExpires(m)},
		renew: func(ctx context.Context, ttl time.Duration) (time.Time, error) {
			renewed := mutex(ttl, m.Value()) // a mutex always extends by its own expiry
			_, err := renewed.ExtendContext(ctx)
			return redsyncExpires(renewed), redsyncVerdict(err, driver.ErrLost)
		},
		release: func() error {
			_, err := m.Unlock()
			return redsyncVerdict(err, driver.ErrLost)
		},
	}, nil
}

// redsyncExpires subtracts the 2 ms of the contract's drift, which redsync ignores.
func redsyncExpires(m *redsync.Mutex) time.Time { return m.Until().Add(-2 * time.Millisecond) }

// redsyncVerdict returns taken if a majority says that the key has another value, or no value.
func redsyncVerdict(err, taken error) error {
	var another *redsync.ErrTaken
	if errors.As(err, &another) || errors.Is(err, redsync.ErrLockAlreadyExpired) {
		return taken
	}
	return err
}
