package dlock

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// DefaultTTL is the TTL where neither WithTTL nor the URL sets one.
const DefaultTTL = 10 * time.Second

// An Option configures a Client. Every LockOption is one, and sets the default of
// the client's locks.
type Option interface{ setClient(*config) }

// A LockOption configures one call of Lock, TryLock or Do.
type LockOption interface {
	Option
	setLock(*lockConfig)
}

// lockConfig has the settings of LockOptions.
type lockConfig struct {
	ttl              time.Duration
	mode             driver.Mode
	ttlSet           bool
	slots            int // zero: none
	maxHold, minHold time.Duration
	margin           time.Duration // zero: the default
	err              error         // of the first invalid option
}

// config has the settings of Options.
type config struct {
	lockConfig
	prefix  string
	hooks   Hooks
	log     *slog.Logger
	label   string
	passOn  time.Duration // or passOnDefault
	require driver.Features
}

func defaults() config {
	return config{lockConfig: lockConfig{ttl: DefaultTTL}, log: slog.Default(), label: defaultLabel(), passOn: passOnDefault}
}

// forever is 73 years. Options cut longer durations, such as math.MaxInt64, because a sum with
// the time that has passed would overflow.
const forever time.Duration = 1 << 61

type lockOption func(*lockConfig)

func (o lockOption) setClient(c *config)   { o(&c.lockConfig) }
func (o lockOption) setLock(l *lockConfig) { o(l) }

type clientOption func(*config)

func (o clientOption) setClient(c *config) { o(c) }

func (l *lockConfig) bad(what, format string, args ...any) {
	if l.err == nil {
		l.err = driver.Invalid(what, format, args...)
	}
}

// WithTTL sets how long a lease lasts unless it is renewed: 10 s by default, in the
// bounds of the backend's Info. A short one frees the lock of a dead holder sooner; a
// long one survives longer outages of the backend. Backends whose locks live with a
// session and have no TTL refuse it.
func WithTTL(ttl time.Duration) LockOption {
	return lockOption(func(l *lockConfig) {
		l.ttl, l.ttlSet = ttl, true
		if ttl <= 0 {
			l.bad("WithTTL", "%v must be more than zero", ttl)
		}
	})
}

// WithShared asks for the shared mode: any number of owners that all ask for it hold the key, and
// no exclusive one. A backend without driver.FeatureShared refuses it.
func WithShared() LockOption {
	return lockOption(func(l *lockConfig) { l.mode = driver.Shared })
}

// WithMargin sets how long before the lease's Deadline its Done is closed: max(5 ms, TTL/50) by
// default, which is for work that checks its context. Where a store compares no tokens, set it to
// how long one write may take. It is at most half of the TTL; a longer one is ErrInvalid, and so
// is any where leases have no TTL.
func WithMargin(d time.Duration) LockOption {
	return lockOption(func(l *lockConfig) {
		l.margin = d
		if d <= 0 {
			l.bad("WithMargin", "%v must be more than zero", d)
		}
	})
}

// WithMaxHold bounds the whole hold, renewals included: the lease is lost d after its
// grant, with ErrMaxHold. Zero, the default, means no bound: a lease renews itself until it is
// released, so that a healthy leader leads for as long as it lives.
//
// It is the limit on reacquisitions that the Redlock page asks for. Set it where a holder may
// hang while its process lives and renews.
func WithMaxHold(d time.Duration) LockOption {
	return lockOption(func(l *lockConfig) {
		l.maxHold = min(d, forever)
		if d < 0 {
			l.bad("WithMaxHold", "%v must be zero (no bound) or more", d)
		}
	})
}

// WithMinHold keeps the lock until d after its grant, even if Unlock comes sooner: a cron job
// of 50 ms on hosts whose clocks differ by a second must not run twice. Unlock ends the lease
// at once, and a timer releases the lock when d is over. If the process ends before, even by
// SIGKILL while the lease is held, a server with driver.FeatureKeep keeps the lock until d is over. A
// backend without it (etcd and ZooKeeper) keeps the lock for its TTL at most, and a session backend's
// locks end with the process: there Close waits until d is over.
func WithMinHold(d time.Duration) LockOption {
	return lockOption(func(l *lockConfig) {
		l.minHold = min(d, forever)
		if d < 0 {
			l.bad("WithMinHold", "%v must be zero or more", d)
		}
	})
}

// WithHooks adds functions that are called as things happen. Given twice, both are called, in turn;
// the contexts of Start are chained.
func WithHooks(h Hooks) Option {
	return clientOption(func(c *config) {
		before := c.hooks
		c.hooks = h
		if start := h.Start; start != nil && before.Start != nil {
			c.hooks.Start = func(ctx context.Context, op, key string) context.Context {
				return start(before.Start(ctx, op, key), op, key)
			}
		} else if start == nil {
			c.hooks.Start = before.Start
		}
		if event := h.Event; event != nil && before.Event != nil {
			c.hooks.Event = func(ctx context.Context, e Event) { before.Event(ctx, e); event(ctx, e) }
		} else if event == nil {
			c.hooks.Event = before.Event
		}
	})
}

// WithLogger sets where the client logs. The default is slog.Default; nil means nowhere.
// Lines are written one after the other on a goroutine of the client's own, under the context
// of the lease or the call. Their messages are constant, and attributes have the details:
// the backend unavailable, a lease lost, notices of the driver.
// The first failure and the first loss have lines of their own; after it one line every ten seconds
// counts the others, as long as there are any.
func WithLogger(log *slog.Logger) Option {
	return clientOption(func(c *config) {
		if log == nil {
			log = slog.New(slog.DiscardHandler)
		}
		c.log = log
	})
}

// WithOwnerLabel sets the first part of the owner's name that others see as the holder:
// host/pid by default. It is 1 to 64 printable ASCII characters without '|' and space.
func WithOwnerLabel(label string) Option {
	return clientOption(func(c *config) {
		c.label = label
		if !validLabel(label) {
			c.bad("WithOwnerLabel", "must be 1 to 64 printable ASCII characters without '|' and space")
		}
	})
}

// knownFeatures are all features of the contract.
const knownFeatures = driver.FeatureTokens<<1 - 1

// WithRequire makes New and Open fail unless the backend has all these features, so that a
// change of configuration cannot silently take away tokens or shared mode. An unknown feature
// is ErrInvalid too.
func WithRequire(f driver.Features) Option {
	return clientOption(func(c *config) { c.require |= f })
}

const maxLabel = 64

func validLabel(s string) bool {
	return s != "" && len(s) <= maxLabel && strings.IndexFunc(s, unfit) < 0
}

// unfit reports that an owner's label must not have a character.
func unfit(r rune) bool { return r <= ' ' || r > '~' || r == '|' }

// defaultLabel is host/pid, changed where WithOwnerLabel would refuse it.
func defaultLabel() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	host = strings.Map(func(r rune) rune {
		if unfit(r) {
			return '-'
		}
		return r
	}, host)
	pid := "/" + strconv.Itoa(os.Getpid())
	return host[:min(len(host), maxLabel-len(pid))] + pid
}
