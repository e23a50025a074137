package trackrecord

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	client "github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
)

// redislockLocks are locks on one server.
type redislockLocks struct {
	*redislock.Client
	client *client.Client
}

func openRedislock(u *dsn.URL) (locks, error) {
	c := client.NewClient(&client.Options{
		Addr: u.Hosts[0], Username: u.User, Password: u.Password, ContextTimeoutEnabled: u.Params.Bool("context_timeout", false),
	})
	return &redislockLocks{redislock.New(c), c}, nil
}

func (r *redislockLocks) close() { _ = r.client.Close() }

// lock asks once: the library's retries would only poll, which callers of a driver do
// themselves. It counts the lease's end from before the call, because the library does not
// return one.
func (r *redislockLocks) lock(ctx context.Context, key string, req *driver.Request) (*lease, error) {
	start := time.Now()
	l, err := r.Obtain(ctx, key, req.TTL, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil, &driver.HeldError{}
	}
	if err != nil {
		return nil, err
	}
	return &lease{
		grant: driver.Grant{Expires: driver.Expires(start, req.TTL)},
		renew: func(ctx context.Context, ttl time.Duration) (time.Time, error) {
			start := time.Now()
			err := l.Refresh(ctx, ttl, nil)
			if errors.Is(err, redislock.ErrNotObtained) {
				err = driver.ErrLost
			}
			return driver.Expires(start, ttl), err
		},
		release: func() error {
			err := l.Release(context.Background())
			if errors.Is(err, redislock.ErrLockNotHeld) {
				err = driver.ErrLost
			}
			return err
		},
	}, nil
}
