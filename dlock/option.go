package dlock

import (
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
)

// The defaults of the options.
const (
	DefaultTTL        = 10 * time.Second
	DefaultMinBackoff = 5 * time.Millisecond
	DefaultMaxBackoff = 100 * time.Millisecond
)

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
	ttl                    time.Duration
	mode                   driver.Mode
	renewal                bool
	ttlSet                 bool
	slots                  int // zero: none
	maxHold, minHold       time.Duration
	minBackoff, maxBackoff time.Duration
	err                    error // of the first invalid option
}

// config has the settings of Options.
type config struct {
	lockConfig
	prefix  string
	hooks   Hooks
	log     *slog.Logger
	label   string
	require driver.Features
	notices *noticeSink
}

func (c *config) reset() {
	c.lockConfig = lockConfig{
		ttl:        DefaultTTL,
		renewal:    true,
		minBackoff: DefaultMinBackoff,
		maxBackoff: DefaultMaxBackoff,
	}
	c.log = slog.Default()
	c.label = defaultLabel()
}

// noticeSink connects a driver's notices to a client that is made after the driver.
type noticeSink struct {
	to atomic.Pointer[Client]
}

func (c *config) sink() func(driver.Notice) {
	s := &noticeSink{}
	c.notices = s
	return func(e driver.Notice) {
		if client := s.to.Load(); client != nil {
			client.notice(e)
		}
	}
}

// checkLock returns the error of the first option that is invalid, alone or beside the others.
func (l *lockConfig) checkLock() error {
	if l.err == nil && l.maxHold > 0 && l.minHold > l.maxHold {
		l.bad("WithMinHold", "%v is over the maximum hold of %v (WithMaxHold)", l.minHold, l.maxHold)
	}
	if l.slots > 0 && l.mode == Shared {
		l.bad("WithSlots", "has no shared mode: leave WithMode(Shared) or WithSlots out")
	}
	return l.err
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

// These types of package driver are part of this package's interface.
type (
	// Mode says whether a lock can be shared: Exclusive or Shared.
	Mode = driver.Mode
	// Features are the capabilities of a backend: a sum of Feature constants.
	Features = driver.Features
	// Info describes a backend.
	Info = driver.Info
	// Vote is one node's answer to a quorum.
	Vote = quorum.Vote
	// Notice is something that happened in the background of a driver.
	Notice = driver.Notice
)

// Exclusive and Shared are the modes of a lock, for WithMode.
const (
	Exclusive = driver.Exclusive
	Shared    = driver.Shared
)

// WithMode sets whether the lock can be shared: Exclusive by default. Shared needs a backend
// with FeatureShared. Any other mode is ErrInvalid.
func WithMode(mode Mode) LockOption {
	return lockOption(func(l *lockConfig) {
		l.mode = mode
		if mode > Shared {
			l.bad("WithMode", "mode %d is unknown: use Exclusive or Shared", mode)
		}
	})
}

// WithRenewal says whether the lease renews itself, between a quarter and a third of its TTL
// after the last time: true by default. Without it the lease ends with its TTL unless
// Lease.Renew is called.
func WithRenewal(on bool) LockOption {
	return lockOption(func(l *lockConfig) { l.renewal = on })
}

// WithMaxHold bounds the whole hold, renewals included: the lease is lost d after its
// grant, with ErrMaxHold, and a line in the log warns at 80 % of d. Zero, the default, means
// no bound: a lease renews itself until it is released, so that a healthy leader leads for as
// long as it lives.
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
// at once; a timer releases the lock when d is over. If the process ends before, even by
// SIGKILL while the lease is held, the server keeps the lock until d is over. A session backend
// cannot do that (its locks end with the process), and Close waits for it. If a backend without
// FeatureKeep cannot keep a lock that long, Close waits for the time beyond the backend's
// longest TTL.
func WithMinHold(d time.Duration) LockOption {
	return lockOption(func(l *lockConfig) {
		l.minHold = min(d, forever)
		if d < 0 {
			l.bad("WithMinHold", "%v must be zero or more", d)
		}
	})
}

// WithBackoff sets the bounds of the jittered, growing pause between two attempts
// where the backend can neither queue nor tell that a lock became free, or is out of
// reach: 5 ms and 100 ms by default.
func WithBackoff(least, most time.Duration) LockOption {
	return lockOption(func(l *lockConfig) {
		l.minBackoff, l.maxBackoff = min(least, forever), min(most, forever)
		if least <= 0 || most < least {
			l.bad("WithBackoff", "%v to %v must be more than zero, and the second not below the first", least, most)
		}
	})
}

// WithHooks adds functions that are called as things happen. Given twice, both are
// called: see JoinHooks.
func WithHooks(h Hooks) Option {
	return clientOption(func(c *config) { c.hooks = JoinHooks(c.hooks, h) })
}

// WithLogger sets where the client logs. The default is slog.Default; nil means nowhere.
// Lines are written one after the other on a goroutine of the client's own, under the context
// of the lease or the call. Their messages are constant, and attributes have the details:
// a lease lost, a lease that nears its WithMaxHold, notices of the driver. An outage has one
// line at its beginning and one at its end, which is Info and counts the renewals that failed
// and the leases lost meanwhile; of these only the first has a line of its own.
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

// The features of backends, for WithRequire and Info.
const (
	FeatureShared   = driver.FeatureShared   // WithMode(Shared)
	FeatureFencing  = driver.FeatureFencing  // leases carry tokens
	FeatureSession  = driver.FeatureSession  // the lock ends with a connection or process
	FeatureOrdered  = driver.FeatureOrdered  // waiters of all clients are served in order
	FeatureQueueing = driver.FeatureQueueing // the backend itself blocks and keeps that order
)

// knownFeatures are all features of the contract.
const knownFeatures = driver.FeatureOrdered<<1 - 1

// WithRequire makes New and Open fail unless the backend has all these features, so that a
// change of configuration cannot silently take away tokens or shared mode. An unknown feature
// is ErrInvalid too.
func WithRequire(f Features) Option {
	return clientOption(func(c *config) { c.require |= f })
}

const maxLabel = 64

func validLabel(s string) bool {
	if s == "" || len(s) > maxLabel {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] > '~' || s[i] == '|' {
			return false
		}
	}
	return true
}

// defaultLabel is host/pid, changed where WithOwnerLabel would refuse it.
func defaultLabel() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	host = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' || r == '|' {
			return '-'
		}
		return r
	}, host)
	pid := "/" + strconv.Itoa(os.Getpid())
	return host[:min(len(host), maxLabel-len(pid))] + pid
}
