package redlocktest

import (
	"context"
	"errors"
	"hash/crc32"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// keeps makes the server keep locks for another time than the request says, without the
// client's knowledge.
func keeps(b *broken, ttl func(time.Duration) time.Duration) {
	bounded := func(d time.Duration) time.Duration { return min(max(ttl(d), driver.MinTTL), memory.MaxTTL) }
	b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
		if err := b.Info().Check("", req); err != nil {
			return nil, err
		}
		other := *req
		other.TTL = bounded(req.TTL)
		l, err := b.Backend.Acquire(ctx, &other)
		if err != nil {
			return nil, err
		}
		got := &brokenLease{Lease: l, b: b, req: req, sent: *req}
		got.claim(req.TTL)
		return got, nil
	}
	b.renew = func(ctx context.Context, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
		if err := b.Info().CheckRenewal(r); err != nil {
			return driver.Grant{}, err
		}
		_, err := l.Lease.Renew(ctx, &driver.Renewal{TTL: bounded(r.TTL), MinFence: r.MinFence})
		if err == nil {
			l.claim(r.TTL)
		}
		return l.Lease.Grant(), err
	}
	b.grant = claimed
}

// claimed returns the grant that the client claims to have.
func claimed(l *brokenLease, g driver.Grant) driver.Grant {
	if other := l.renewed.Load(); other != nil {
		return *other
	}
	return g
}

// verdicts changes the reported holder.
func verdicts(b *broken, change func(he *driver.HeldError)) {
	acquire := b.acquire
	if acquire == nil {
		acquire = b.Backend.Acquire
	}
	b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
		l, err := acquire(ctx, req)
		var he *driver.HeldError
		if errors.As(err, &he) {
			change(he)
		}
		return l, err
	}
}

// counters gives tokens from a counter for each key, instead of the tokens of the wrapped backend.
type counters struct {
	expire, drop bool // a counter ends when its lock expires, or is released

	mu     sync.Mutex
	counts map[string]uint64
	ends   map[string]time.Time
	pairs  []tokenPair // of all grants
}

// tokenPair is a token of the wrapped backend, and the one that a counter gave in its place.
type tokenPair struct {
	key            string
	backend, given uint64
}

// other returns the backend's token for a given one, or the other way round. A token that nobody has
// stays as it is in the answers, and is that of no grant in a question.
func (c *counters) other(key string, fence uint64, given bool) uint64 {
	if c == nil {
		return fence
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pairs {
		switch {
		case p.key != key:
		case given && p.given == fence:
			return p.backend
		case !given && p.backend == fence:
			return p.given
		}
	}
	if given {
		return driver.MaxFence
	}
	return fence
}

func (c *counters) count(b *broken) {
	b.tokens = c
	b.answers(func(ctx context.Context, req *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		now := time.Now()
		if end, ok := c.ends[req.Key]; c.expire && ok && !now.Before(end) {
			delete(c.counts, req.Key)
		}
		fence := driver.NextFence(c.counts[req.Key]+uint64(max(req.Tokens, 1))-1, req.FenceFloor, now)
		c.counts[req.Key], c.ends[req.Key] = fence, now.Add(req.TTL)
		got := &brokenLease{Lease: l, b: b, req: req, sent: *req}
		g := l.Grant()
		c.pairs = append(c.pairs, tokenPair{req.Key, g.Fence, fence})
		g.Fence = fence
		got.renewed.Store(&g)
		return got, nil
	})
	b.grant = func(l *brokenLease, g driver.Grant) driver.Grant {
		if other := l.renewed.Load(); other != nil {
			g.Fence = other.Fence
		}
		return g
	}
	b.release = func(ctx context.Context, l *brokenLease) error {
		err := l.Lease.Release(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err == nil && c.drop {
			delete(c.counts, l.sent.Key)
		}
		return err
	}
}

// oneCounter opens clients that share the counters, which end when their locks expire, or
// are released.
func oneCounter(expire, drop bool) func(func(*broken)) Harness {
	return func(func(*broken)) Harness {
		c := &counters{expire: expire, drop: drop, counts: map[string]uint64{}, ends: map[string]time.Time{}}
		return overMemory(c.count)
	}
}

// timeBugs concern TTLs, hints, clocks and tokens.
var timeBugs = []bug{
	{name: "a renewal with another TTL extends by the first", stress: true, want: "expiry/renew-longer", rule: "driver.HeldError", says: "RetryAfter", plant: func(b *broken) {
		b.renew = func(ctx context.Context, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
			if err := b.Info().CheckRenewal(r); err != nil {
				return driver.Grant{}, err
			}
			g, err := l.Lease.Renew(ctx, &driver.Renewal{TTL: l.sent.TTL, MinFence: r.MinFence})
			if err == nil {
				g = l.claim(r.TTL)
			}
			return g, err
		}
		b.grant = claimed
	}},
	{name: "a renewal's TTL is ignored", want: "expiry/renew-shorter", rule: "rule 3", plant: onRenew(func(ctx context.Context, b *broken, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
		if err := b.Info().CheckRenewal(r); err != nil {
			return driver.Grant{}, err
		}
		return l.Lease.Renew(ctx, &driver.Renewal{TTL: l.sent.TTL, MinFence: r.MinFence})
	})},
	{name: "a shorter renewal is ignored", want: "expiry/renew-shorter", rule: "driver.Lease.Renew", says: "still held", plant: func(b *broken) {
		b.renew = func(ctx context.Context, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
			if err := b.Info().CheckRenewal(r); err != nil {
				return driver.Grant{}, err
			}
			g, err := l.Lease.Renew(ctx, &driver.Renewal{TTL: max(r.TTL, l.sent.TTL), MinFence: r.MinFence})
			if err == nil {
				g = l.claim(r.TTL)
			}
			return g, err
		}
		b.grant = claimed
	}},
	{name: "a TTL is floored to whole seconds", want: "expiry/odd-ttl", rule: "rule 3", plant: func(b *broken) {
		keeps(b, func(d time.Duration) time.Duration {
			if d < time.Second {
				return d
			}
			return d / time.Second * time.Second
		})
	}},
	{name: "a TTL is floored to tenths of a second", stress: true, want: "expiry/odd-ttl", rule: "rule 3", plant: func(b *broken) {
		keeps(b, func(d time.Duration) time.Duration { return d / (100 * time.Millisecond) * (100 * time.Millisecond) })
	}},
	{name: "the lock is kept 10 ms too short", stress: true, want: "expiry/retry-after", rule: "driver.HeldError", plant: func(b *broken) {
		keeps(b, func(d time.Duration) time.Duration { return d - 10*time.Millisecond })
	}},
	{name: "the lock is kept 10 ms too short, and nobody tells", stress: true, want: "expiry/to-the-millisecond", rule: "rule 3", plant: func(b *broken) {
		keeps(b, func(d time.Duration) time.Duration { return d - 10*time.Millisecond })
		verdicts(b, func(he *driver.HeldError) { he.RetryAfter = 0 })
	}},
	{name: "the lock is kept ten times too long", want: "expiry/free", rule: "driver.Lease.Renew", plant: func(b *broken) {
		keeps(b, func(d time.Duration) time.Duration { return 10 * d })
		verdicts(b, func(he *driver.HeldError) { he.RetryAfter = 0 })
	}},
	{name: "the lock is kept ten times too long, and says so", want: "expiry/retry-after", rule: "driver.HeldError", plant: func(b *broken) {
		keeps(b, func(d time.Duration) time.Duration { return 10 * d })
	}},
	{name: "a lease ends a minute too late after a renewal", stress: true, want: "expiry/expires", rule: "rule 3", says: "after Renew", plant: func(b *broken) {
		b.renews(func(ctx context.Context, l *brokenLease, r *driver.Renewal, g driver.Grant, err error) (driver.Grant, error) {
			if err == nil {
				g = l.grantUntil(r.TTL)
				g.Expires = g.Expires.Add(time.Minute)
				l.renewed.Store(&g)
			}
			return g, err
		})
		b.grant = claimed
	}},
	{name: "a lease ends a second too late after a wait", stress: true, want: "wait/expires-after-wait", rule: "rule 3", plant: onGrant(func(_ *broken, l *brokenLease, g driver.Grant) driver.Grant {
		if l.sent.Wait {
			g.Expires = g.Expires.Add(time.Second)
		}
		return g
	})},
	{name: "a lease lasts for a tenth of its TTL", want: "expiry/expires", rule: "driver.Lease.Renew", plant: onGrant(func(_ *broken, l *brokenLease, g driver.Grant) driver.Grant {
		g.Expires = g.Expires.Add(-l.sent.TTL * 9 / 10)
		return g
	})},
	{name: "RetryAfter is 1 ns", want: "verdict/held", rule: "driver.HeldError", says: "RetryAfter", plant: func(b *broken) {
		verdicts(b, func(he *driver.HeldError) { he.RetryAfter = 1 })
	}},
	{name: "RetryAfter is one and a half TTLs", want: "verdict/held", rule: "driver.HeldError", says: "RetryAfter", plant: func(b *broken) {
		verdicts(b, func(he *driver.HeldError) { he.RetryAfter = he.RetryAfter * 3 / 2 })
	}},
	{name: "Since is a minute early", want: "verdict/held", rule: "driver.HeldError", says: "Since", plant: func(b *broken) {
		verdicts(b, func(he *driver.HeldError) { he.Since = he.Since.Add(-time.Minute) })
	}},
	{name: "Since is a minute late, and no clock is told", want: "verdict/held", rule: "driver.HeldError", says: "Since", plant: func(b *broken) {
		verdicts(b, func(he *driver.HeldError) { he.Since, he.Clock = he.Since.Add(time.Minute), time.Time{} })
	}},
	{name: "tokens by the client's clock", stress: true, want: "fence/clock", rule: "rule 8", says: "clock", over: func(func(*broken)) Harness {
		space := memory.New()
		open := func(ahead time.Duration) (driver.Backend, error) {
			b := &broken{Backend: space.Peer()}
			b.grant = func(_ *brokenLease, g driver.Grant) driver.Grant {
				g.Fence = uint64(time.Now().Add(ahead).UnixMicro())
				return g
			}
			return b, nil
		}
		return Harness{Open: func() (driver.Backend, error) { return open(0) }, OpenWithClock: open}
	}},
	{name: "a counter that expires with its lock", want: "expiry/counter", rule: "rule 8", over: oneCounter(true, false)},
	{name: "a counter that is released with its lock", want: "node/floor", rule: "rule 8", over: oneCounter(false, true)},
	{name: "keys are cut to a CRC of 32 bits", stress: true, want: "request/key-hashes", rule: "driver.Request", says: "32 bits", plant: func(b *broken) {
		hashed(b, func(key []byte) uint32 { return crc32.ChecksumIEEE(key) })
	}},
	{name: "keys are cut by hashtext", want: "request/key-hashes", rule: "driver.Request", says: "32 bits", plant: func(b *broken) {
		hashed(b, hashtext)
	}},
	{name: "keys without case", want: "request/odd-keys", rule: "driver.Request", plant: func(b *broken) {
		b.sends(func(req *driver.Request) { req.Key = strings.ToLower(req.Key) })
	}},
	{name: "keys are cut to FNV-1a of 32 bits", stress: true, want: "request/key-hashes", rule: "driver.Request", says: "32 bits", plant: func(b *broken) {
		hashed(b, hashes["FNV-1a"])
	}},
	{name: "keys are cut to 4 bytes of SHA-256", stress: true, want: "request/key-hashes", rule: "driver.Request", says: "32 bits", plant: func(b *broken) {
		hashed(b, hashes["4 bytes of SHA-256"])
	}},
}

func hashed(b *broken, hash func([]byte) uint32) {
	b.sends(func(req *driver.Request) {
		if b.Info().Check("", req) == nil {
			h := hash([]byte(req.Key))
			req.Key = string([]byte{'h', byte(h), byte(h >> 8), byte(h >> 16), byte(h >> 24)})
		}
	})
}
