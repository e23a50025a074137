package mydriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// The scripts. KEYS are the lock, its counter and the lock's channel. ARGV[1] is the owner.
var (
	// acquireScript takes a free key for ARGV[2] ms, with a token of at least ARGV[3], or the server's
	// time if that is empty. If ARGV[4] is not empty, it is the time by which the holder's end is
	// judged, and the end is kept in the counter's hash.
	acquireScript = redis.NewScript(`
local holder = redis.call('GET', KEYS[1])
local ends = tonumber(redis.call('HGET', KEYS[2], 'ends') or 0)
if holder and not (ARGV[4] ~= '' and ends < tonumber(ARGV[4])) then return {0, holder, redis.call('PTTL', KEYS[1])} end
local t = redis.call('TIME')
local fence = ARGV[3] ~= '' and tonumber(ARGV[3]) or t[1] * 1000000 + t[2]
fence = math.max(fence, tonumber(redis.call('HGET', KEYS[2], 'fence') or 0) + 1)
redis.call('HSET', KEYS[2], 'fence', string.format('%.0f', fence), 'ends', ARGV[4] ~= '' and ARGV[4] + ARGV[2] or 0)
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[4] ~= '' and 86400000 or ARGV[2])
return {1, string.format('%.0f', fence), 0}`)
	// renewScript extends the lock to ARGV[2] ms from now. If ARGV[3] is not empty, it also takes a
	// lock that ended, unless another had it since: the counter is still ARGV[3].
	renewScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
if ARGV[3] == redis.call('HGET', KEYS[2], 'fence') and redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then return 1 end
return 0`)
	// releaseScript frees the lock. If ARGV[2] is not empty, it frees anybody's.
	releaseScript = redis.NewScript(`
if redis.call('GET', KEYS[1]) ~= ARGV[1] and ARGV[2] == '' then return 0 end
local n = redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[3], '')
return n`)
)

// backend is a driver's backend, with one mistake or none.
type backend struct {
	mistake string
	client  *redis.Client
	calls   base.Calls
}

var _ driver.Watcher = (*backend)(nil)

// Mistake in the environment is the mistake of the backends that are opened, here and in processes that
// are started; empty: none.
const Mistake = "MYDRIVER_MISTAKE"

// New returns a backend on the Redis at addr.
func New(addr string) (driver.Backend, error) {
	return &backend{mistake: os.Getenv(Mistake), calls: base.Calls{Name: "mydriver"}, client: redis.NewClient(&redis.Options{
		Addr: addr, ContextTimeoutEnabled: true, DialTimeout: time.Second, MaxRetries: -1, PoolSize: 50,
	})}, nil
}

func (b *backend) Info() driver.Info {
	return driver.Info{Name: "mydriver", Features: driver.FeatureFencing, MinTTL: 20 * time.Millisecond, MaxTTL: 24 * time.Hour}
}

func (b *backend) Close() error {
	if b.calls.Close() {
		return b.client.Close()
	}
	return nil
}

// when returns the text if the backend has the mistake, and else an empty one.
func (b *backend) when(mistake string, text any) string {
	if b.mistake != mistake {
		return ""
	}
	return fmt.Sprint(text)
}

func keysOf(key string) []string { return []string{key, "count:" + key, "free:" + key} }

func (b *backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if err := b.Info().Check("", req); err != nil {
		return nil, err
	}
	call, err := b.calls.Begin(ctx, b.calls.Bound(req.TTL))
	if err != nil {
		return nil, err
	}
	defer call.End()
	start, key, owner := time.Now(), req.Key, req.Owner
	free := func(call *base.Call) error {
		return releaseScript.Run(call, b.client, keysOf(key), owner, b.when("Release frees the next owner's lock", "yes")).Err()
	}
	reply, err := acquireScript.Run(call, b.client, keysOf(key), owner, req.TTL.Milliseconds(),
		b.when("tokens by the client's clock", start.UnixMicro()), b.when("ends by the client's clock", start.UnixMilli())).Slice()
	if err == nil && b.calls.Closed() && b.mistake == "a grant during Close is dropped" {
		return nil, driver.ErrClosed
	}
	if err = errors.Join(err, call.Over()); err != nil { // it may have taken effect, and may yet
		if b.mistake != "a failed attempt is not undone" {
			b.calls.Undo(start.Add(2*req.TTL), surely(free))
		}
		if b.mistake == "an outage is contention" && ctx.Err() == nil && !b.calls.Closed() {
			return nil, &driver.HeldError{}
		}
		return nil, call.Failed(err)
	}
	if reply[0].(int64) == 0 {
		return nil, &driver.HeldError{Holder: reply[1].(string), RetryAfter: time.Duration(reply[2].(int64)) * time.Millisecond}
	}
	grant := driver.Grant{Expires: driver.Expires(start, req.TTL)}
	if _, err := fmt.Sscan(reply[1].(string), &grant.Fence); err != nil {
		return nil, err
	}
	renew := func(call *base.Call, r *driver.Renewal) (driver.Grant, error) {
		start := time.Now()
		done, err := renewScript.Run(call, b.client, keysOf(key), owner, r.TTL.Milliseconds(), b.when("a lease that ended is revived", grant.Fence)).Bool()
		if err == nil && !done {
			err = driver.ErrLost
		}
		return driver.Grant{Fence: grant.Fence, Expires: driver.Expires(start, r.TTL)}, err
	}
	release := func(call *base.Call) error {
		n, err := releaseScript.Run(call, b.client, keysOf(key), owner, b.when("Release frees the next owner's lock", "yes")).Int()
		switch {
		case err != nil && b.mistake == "Release swallows its error":
			return nil
		case err == nil && n == 0:
			return driver.ErrLost
		}
		return err
	}
	return base.NewLease(&b.calls, b.Info(), grant, renew, release), nil
}

// surely frees several times, because the request of the attempt may still be on its way.
func surely(free func(*base.Call) error) func(*base.Call) error {
	return func(call *base.Call) (err error) {
		for range 4 {
			if err = free(call); err != nil {
				return err
			}
			time.Sleep(10 * time.Millisecond)
		}
		return nil
	}
}

func (b *backend) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	call, err := b.calls.Begin(ctx, b.calls.Bound(0))
	if err != nil {
		return nil, err
	}
	defer call.End()
	out := make(chan struct{}, 1)
	if b.mistake == "a watch never signals" {
		return out, nil
	}
	s := b.client.Subscribe(call, "free:"+key)
	if _, err := s.Receive(call); err != nil { // the answer to SUBSCRIBE
		return nil, errors.Join(call.Failed(err), s.Close())
	}
	if !b.calls.Go(func(own context.Context) {
		defer s.Close() //nolint:errcheck // nothing is left to do
		for ctx.Err() == nil && own.Err() == nil {
			_, err := s.ReceiveTimeout(own, 100*time.Millisecond)
			if err != nil && strings.Contains(err.Error(), "i/o timeout") {
				continue
			}
			if err != nil {
				time.Sleep(10 * time.Millisecond)
			}
			select { // a message, or a new connection, which may have missed one
			case out <- struct{}{}:
			default:
			}
		}
	}) {
		return nil, errors.Join(driver.ErrClosed, s.Close())
	}
	return out, nil
}
