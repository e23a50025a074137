package stranger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/driver"
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

// callTimeout bounds one call of the server.
const callTimeout = time.Second

// backend is a driver's backend, with one mistake or none.
type backend struct {
	mistake string
	client  *redis.Client
	ctx     context.Context // ends with the backend
	end     context.CancelFunc
	closed  atomic.Bool
	mu      sync.Mutex // guards work.Add against Close
	work    sync.WaitGroup
}

var _ driver.Watcher = (*backend)(nil)

func open(addr, mistake string) *backend {
	b := &backend{mistake: mistake, client: redis.NewClient(&redis.Options{
		Addr: addr, ContextTimeoutEnabled: true, ReadTimeout: callTimeout, WriteTimeout: callTimeout, DialTimeout: callTimeout, MaxRetries: -1, PoolSize: 50,
	})}
	b.ctx, b.end = context.WithCancel(context.Background())
	return b
}

func (b *backend) Info() driver.Info {
	return driver.Info{Name: "stranger", Features: driver.FeatureFencing, MinTTL: 20 * time.Millisecond, MaxTTL: 24 * time.Hour}
}

// begin begins a call that Close waits for, and reports false if the backend is closed.
func (b *backend) begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed.Load() {
		return false
	}
	b.work.Add(1)
	return true
}

func (b *backend) Close() error {
	b.mu.Lock()
	again := b.closed.Swap(true)
	b.mu.Unlock()
	if again {
		return nil
	}
	b.end()
	b.work.Wait()
	return b.client.Close()
}

func keysOf(key string) []string { return []string{key, "count:" + key, "free:" + key} }

// run makes one call.
func (b *backend) run(ctx context.Context, s *redis.Script, key string, args ...any) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	reply, err := s.Run(ctx, b.client, keysOf(key), args...).Result()
	if err != nil && b.closed.Load() {
		err = errors.Join(driver.ErrClosed, err)
	}
	return reply, err
}

func (b *backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if err := b.Info().Check("", req); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if !b.begin() {
		return nil, driver.ErrClosed
	}
	defer b.work.Done()
	fence, now := "", ""
	if b.mistake == "tokens by the client's clock" {
		fence = fmt.Sprint(time.Now().UnixMicro())
	}
	if b.mistake == "ends by the client's clock" {
		now = fmt.Sprint(time.Now().UnixMilli())
	}
	start := time.Now()
	reply, err := b.run(ctx, acquireScript, req.Key, req.Owner, req.TTL.Milliseconds(), fence, now)
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) { // the context's own timer may be late
		err = errors.Join(context.DeadlineExceeded, err)
	} else if ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	if b.closed.Load() && b.mistake == "a grant during Close is dropped" {
		return nil, driver.ErrClosed
	}
	if err != nil {
		if b.mistake != "a failed attempt is not undone" {
			b.undo(req.Key, req.Owner)
		}
		if b.mistake == "an outage is contention" && ctx.Err() == nil && !b.closed.Load() {
			return nil, &driver.HeldError{}
		}
		return nil, err
	}
	answer := reply.([]any)
	if answer[0].(int64) == 0 {
		return nil, &driver.HeldError{Holder: answer[1].(string), RetryAfter: time.Duration(answer[2].(int64)) * time.Millisecond}
	}
	l := &lease{b: b, key: req.Key, owner: req.Owner}
	if _, err := fmt.Sscan(answer[1].(string), &l.grant.Fence); err != nil {
		return nil, err
	}
	l.grant.Expires = driver.Expires(start, req.TTL)
	return l, nil
}

// undo releases an attempt whose outcome is unknown, until it surely has not the lock: its request
// may still be on its way.
func (b *backend) undo(key, owner string) {
	b.work.Go(func() {
		ctx := context.WithoutCancel(b.ctx)
		for certain := 0; certain < 5; {
			if _, err := releaseScript.Run(ctx, b.client, keysOf(key), owner, "").Result(); err == nil {
				certain++
			} else if b.ctx.Err() != nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
}

func (b *backend) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if !b.begin() {
		return nil, driver.ErrClosed
	}
	defer b.work.Done()
	out := make(chan struct{}, 1)
	if b.mistake == "a watch never signals" {
		return out, nil
	}
	s := b.client.Subscribe(b.ctx, "free:"+key)
	receive := func() error {
		_, err := s.ReceiveTimeout(ctx, callTimeout)
		return err
	}
	if err := receive(); err != nil { // the answer to SUBSCRIBE
		return nil, errors.Join(err, s.Close())
	}
	over := context.AfterFunc(ctx, func() { _ = s.Close() })
	b.work.Go(func() {
		defer over()
		defer s.Close() //nolint:errcheck // nothing is left to do
		for ctx.Err() == nil && b.ctx.Err() == nil {
			_, err := s.ReceiveTimeout(b.ctx, callTimeout)
			if err != nil && strings.Contains(err.Error(), "i/o timeout") {
				continue
			}
			if err != nil && !errors.Is(err, io.EOF) {
				time.Sleep(10 * time.Millisecond)
			}
			select { // a message, or a new connection, which may have missed one
			case out <- struct{}{}:
			default:
			}
		}
	})
	return out, nil
}

// lease is a lease of a backend.
type lease struct {
	b          *backend
	key, owner string
	mu         sync.Mutex
	grant      driver.Grant
	over       bool
}

func (l *lease) Grant() driver.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.grant
}

func (l *lease) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
}

func (l *lease) isOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

func (l *lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	if err := l.b.Info().CheckRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	if l.isOver() {
		return driver.Grant{}, driver.ErrLost
	}
	if !l.b.begin() {
		return driver.Grant{}, driver.ErrClosed
	}
	defer l.b.work.Done()
	start, revives := time.Now(), ""
	if l.b.mistake == "a lease that ended is revived" {
		revives = fmt.Sprint(l.Grant().Fence)
	}
	reply, err := l.b.run(ctx, renewScript, l.key, l.owner, r.TTL.Milliseconds(), revives)
	if err != nil {
		return driver.Grant{}, err
	}
	if reply.(int64) == 0 {
		l.finish()
		return driver.Grant{}, driver.ErrLost
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if end := driver.Expires(start, r.TTL); end.After(l.grant.Expires) || r.TTL > 0 {
		l.grant.Expires = end
	}
	return l.grant, nil
}

func (l *lease) Release(ctx context.Context) error {
	if l.isOver() {
		return nil
	}
	if !l.b.begin() {
		return driver.ErrClosed
	}
	defer l.b.work.Done()
	anybody := ""
	if l.b.mistake == "Release frees the next owner's lock" {
		anybody = "yes"
	}
	reply, err := l.b.run(context.WithoutCancel(ctx), releaseScript, l.key, l.owner, anybody)
	if err != nil && l.b.mistake != "Release swallows its error" {
		return err
	}
	l.finish()
	if n, _ := reply.(int64); err == nil && n == 0 {
		return driver.ErrLost
	}
	return nil
}
