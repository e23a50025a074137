package trackrecord

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/valkey-io/valkey-go"
	"github.com/valkey-io/valkey-go/valkeylock"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
)

// valkeylockLocks are locks on one server, each with a context that ends with the lock.
type valkeylockLocks struct {
	option valkeylock.LockerOption

	mu     sync.Mutex
	locker valkeylock.Locker // nil: not connected yet
	ended  bool
}

func openValkeylock(u *dsn.URL) (locks, error) {
	return &valkeylockLocks{option: valkeylock.LockerOption{
		ClientOption:   valkey.ClientOption{InitAddress: u.Hosts, Username: u.User, Password: u.Password},
		KeyMajority:    1, // the library needs this on one server
		KeyValidity:    u.Params.Duration("validity", 5*time.Second, time.Millisecond),
		NoLoopTracking: true,
	}}, nil
}

// connect makes the library's locker, which connects at once.
func (v *valkeylockLocks) connect() (valkeylock.Locker, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended {
		return nil, driver.ErrClosed
	}
	if v.locker != nil {
		return v.locker, nil
	}
	l, err := valkeylock.NewLocker(v.option)
	if err == nil {
		v.locker = l
	}
	return l, err
}

func (v *valkeylockLocks) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended = true; v.locker != nil {
		v.locker.Close()
	}
}

func (v *valkeylockLocks) lock(ctx context.Context, key string, req *driver.Request) (*lease, error) {
	locker, err := v.connect()
	if err != nil {
		return nil, err
	}
	try := locker.TryWithContext
	if req.Wait {
		try = locker.WithContext
	}
	live, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the lock outlives the call
	stop := context.AfterFunc(ctx, cancel)
	held, release, err := try(live, key)
	switch inTime := stop(); {
	case err == nil && !inTime:
		release()
		return nil, ctx.Err()
	case errors.Is(err, valkeylock.ErrNotLocked):
		cancel()
		return nil, &driver.HeldError{}
	case err != nil:
		cancel()
		return nil, err
	}
	return &lease{
		grant: driver.Grant{Lost: held.Done()},
		renew: func(ctx context.Context, _ time.Duration) (time.Time, error) {
			if held.Err() != nil { // the library renews by itself; this only checks that the server answers
				return time.Time{}, driver.ErrLost
			}
			c := locker.Client()
			return time.Time{}, c.Do(ctx, c.B().Exists().Key("valkeylock:0:"+key).Build()).Error()
		},
		release: func() error {
			release()
			cancel()
			return nil
		},
	}, nil
}
