package deploy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/redlock"
)

// under is a driver that opens a URL's backend under the measurement's own prefix. It keeps the
// nodes of a quorum, so that each can be measured over the same connections.
const under = "benchmark-under"

func init() { dlock.Register(under, opener{}) }

type opener struct{}

// opened passes values between open and opener.Open, which open calls under this mutex.
var opened struct {
	sync.Mutex
	prefix    string // the measurement's prefix, appended to the user's
	unguarded bool
	backend   *parts
}

// parts holds a backend and its nodes.
type parts struct {
	whole  driver.Backend
	nodes  []driver.Backend // only the backend itself if it is not a quorum
	prefix string           // prefix of every key, including that of the URL
}

// Open opens cfg.DSN, from which package dlock has taken the parameters prefix and ttl.
func (opener) Open(cfg *driver.Config) (driver.Backend, error) {
	p := &parts{prefix: cfg.Prefix + opened.prefix}
	resolve := func(u string) (driver.Backend, error) {
		b, err := dlock.OpenBackend(withParameter(u, "prefix", p.prefix))
		if err == nil {
			p.nodes = append(p.nodes, b)
		}
		return b, err
	}
	var err error
	if strings.HasPrefix(cfg.DSN, "redlock:") {
		address := cfg.DSN
		if opened.unguarded {
			address = withoutGuard(address)
		}
		p.whole, err = redlock.Driver{}.Open(&driver.Config{DSN: address, Prefix: p.prefix, Notify: cfg.Notify, Resolve: resolve})
	} else {
		p.whole, err = resolve(cfg.DSN)
	}
	opened.backend = p
	return p.whole, err
}

// withoutGuard returns the URL of a quorum with the restart guard turned off.
func withoutGuard(u string) string {
	items := slices.DeleteFunc(strings.Split(u, ","), func(item string) bool {
		name, _, _ := strings.Cut(item, "=")
		return slices.Contains([]string{"restart_guard", "bootstrap", "strict_guard"}, name)
	})
	return strings.Join(append(items, "restart_guard=off"), ",")
}

// withParameter adds a parameter to a URL.
func withParameter(u, name, value string) string {
	mark := "?"
	if strings.Contains(u, "?") {
		mark = "&"
	}
	return u + mark + name + "=" + url.QueryEscape(value)
}

// A target is one client of the measured deployment.
type target struct {
	*dlock.Client
	parts
}

// open opens a new client.
func open(u, prefix string, unguarded bool, opts ...dlock.Option) (*target, error) {
	opened.Lock()
	defer opened.Unlock()
	opened.prefix, opened.unguarded = prefix, unguarded
	c, err := dlock.Open(under, u, append(opts, dlock.WithLogger(nil))...)
	if err != nil {
		return nil, clean(err)
	}
	return &target{c, *opened.backend}, nil
}

// clean removes the name of this package's driver from an error.
func clean(err error) error {
	return plainError{strings.NewReplacer("dlock: open "+under+": ", "", "dlock: ", "", `trylock "first": `, "", under, "the URL").Replace(err.Error()), err}
}

type plainError struct {
	text string
	err  error
}

func (e plainError) Error() string { return strings.Join(strings.Fields(e.text), " ") }
func (e plainError) Unwrap() error { return e.err }

// ownPrefix returns a unique prefix.
func ownPrefix() string { return "benchmark/" + rand.Text() + "/" }

// address returns the backend's address, without any secret.
func address(b driver.Backend) string {
	if s, ok := b.(fmt.Stringer); ok && !dsn.HasPassword(s.String()) {
		return s.String()
	}
	return b.Info().Name
}

// patience is how long a deployment may take to grant the first lock, in addition to its
// restart guard.
const patience = 5 * time.Second

// declare declares the prefix new, if the servers have a restart guard. It fails unless all
// servers answer: otherwise new servers do not vote.
func (t *target) declare(ctx context.Context) error {
	g, ok := t.Backend().(quorum.Admin)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := g.Bootstrap(ctx, &quorum.Bootstrap{})
	return err
}

// grant takes the first lock. It waits until the restart guard has ended, if one refuses the lock.
func (t *target) grant(ctx context.Context, say func(string, ...any)) error {
	began := time.Now()
	end := began.Add(patience)
	for said := false; ; {
		err := t.tryOnce(ctx)
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		var refused *driver.RefusedError
		isRefused := errors.As(err, &refused)
		if errors.Is(err, dlock.ErrInvalid) || isRefused && refused.RetryAfter == 0 || time.Now().After(end) {
			return clean(err)
		}
		pause := 100 * time.Millisecond
		if isRefused && refused.RetryAfter > time.Second {
			pause = time.Second
			if !said {
				said = true
				end = time.Now().Add(refused.RetryAfter + patience)
				say("waiting %.0f s for the restart guard: %s", refused.RetryAfter.Seconds(), refused.Reason)
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

func (t *target) tryOnce(ctx context.Context) error {
	l, err := t.TryLock(ctx, "first")
	if err != nil {
		return err
	}
	return l.Unlock()
}
