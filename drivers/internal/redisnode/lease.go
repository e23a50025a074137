package redisnode

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// A Lease is one acquisition of one lock.
type Lease struct {
	node   *Node
	key    string
	owner  string
	value  string // as stored: owner|token
	quorum *driver.Quorum

	turn sync.Mutex // one renewal at a time

	mu       sync.Mutex
	grant    driver.Grant
	released bool
	late     []inDoubtCall // tries of the acquisition whose outcome is not known
	bound    time.Time     // the Expires of a renewal whose outcome is not known…
	bounded  time.Time     // …and which may take effect until then
}

var _ driver.Lease = (*Lease)(nil)

// Grant returns the grant as of the last success.
func (l *Lease) Grant() driver.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.grant
}

// Renew extends the lease, if this acquisition still has the lock. Renewals of one
// lease go one after the other.
func (l *Lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	n := l.node
	if err := n.Info().CheckRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	if r.MinFence > driver.MaxFence {
		return driver.Grant{}, driver.Invalid("MinFence", "%d is over the largest token, %d", r.MinFence, uint64(driver.MaxFence))
	}
	if n.closed.Load() {
		return driver.Grant{}, driver.ErrClosed
	}
	if l.over() {
		return driver.Grant{}, driver.ErrLost
	}
	ctx = within(ctx, n.timeout(max(r.TTL, r.Keep)))
	l.turn.Lock()
	defer l.turn.Unlock()
	g, err := l.renew(ctx, r)
	return g, n.explain(l.key, err)
}

func (l *Lease) renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	n := l.node
	deadline, _ := ctx.Deadline()
	keys := append(make([]string, 0, 4), n.names.lock(l.key), n.names.counter(l.key), n.names.mark(l.key, n.cfg.Cluster))
	px, keep := n.renewalPX(r, l.quorum)
	least, life := strconv.FormatUint(r.MinFence, 10), n.counterLife(max(r.TTL, r.Keep), l.quorum)
	args := func(p *process) []string {
		return []string{notAfter(p, deadline), l.value, px, least, life, keep}
	}
	for again, late := false, false; ; {
		start := time.Now()
		a, err := n.fleet.run(ctx, opRenew, n.guard.of(l.quorum), r.TTL, keys, nil, args)
		if err != nil {
			if !n.unknown(err) {
				return driver.Grant{}, err
			}
			l.inDoubt(driver.Expires(start, r.TTL), deadline)
			if again || ended(ctx) {
				return driver.Grant{}, err
			}
			again = true
			continue
		}
		clock := a.learn(1)
		switch code, _ := number(a.reply, 0); code {
		case 1:
			if err := n.replicated(a); err != nil {
				l.inDoubt(driver.Expires(start, r.TTL), time.Now())
				return driver.Grant{}, err
			}
			return l.extend(a, clock, r.TTL), nil
		case 0:
			return driver.Grant{}, driver.ErrLost
		case -1:
			if late {
				return driver.Grant{}, errTooLate
			}
			late = true
		default:
			return driver.Grant{}, errGarbled
		}
	}
}

// doubt notes a renewal that may yet take effect, until the instant until: a later
// and longer one must not promise more than this one would leave.
func (l *Lease) inDoubt(expires, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bounded.Before(time.Now()) || expires.Before(l.bound) {
		l.bound = expires
	}
	if until.After(l.bounded) {
		l.bounded = until
	}
}

func (l *Lease) extend(a *answer, clock time.Time, ttl time.Duration) driver.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grant.Expires = driver.Expires(a.sent, ttl)
	if a.received.Before(l.bounded) && l.bound.Before(l.grant.Expires) {
		l.grant.Expires = l.bound
	}
	l.grant.Clock, l.grant.Server, l.grant.Terms = clock, a.process.run, a.terms(l.quorum)
	return l.grant
}

func (l *Lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.released
}

// Release frees the lock, if this acquisition has it, and wakes its waiters. It
// works after ctx has ended, and takes at most three call timeouts: three seconds
// by default. For a node of a quorum, which tries again by itself, the deadline of a
// ctx that has not ended holds.
func (l *Lease) Release(ctx context.Context) error {
	n := l.node
	if n.closed.Load() {
		return driver.ErrClosed
	}
	if l.over() {
		return nil
	}
	if l.quorum == nil || ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	found, err := n.release(ctx, l.key, l.value, releaseTries)
	if err != nil {
		return n.explain(l.key, err)
	}
	l.mu.Lock()
	first := !l.released
	l.released = true
	late := l.late
	l.mu.Unlock()
	if len(late) > 0 && first {
		// A try of the acquisition is still on its way somewhere.
		n.cleanUp(ctx, &attempt{node: n, key: l.key, owner: l.owner, late: late})
	}
	if !found && first {
		return driver.ErrLost
	}
	return nil
}

// release frees the lock, if its value is this one, or begins with it where that ends
// in '|', and reports whether it was. It tries
// again where the outcome is unknown; "not found" counts as found then.
func (n *Node) release(ctx context.Context, key, value string, tries int) (found bool, err error) {
	return n.give(ctx, key, value, "", tries)
}

// give is release, and gives up a place in line, if there is one.
func (n *Node) give(ctx context.Context, key, value, place string, tries int) (found bool, err error) {
	keys := []string{n.names.lock(key)}
	handing := n.handing(key, place)
	args := func(p *process) []string {
		said := append(append(make([]string, 0, 9), "0", value), handing...)
		if left, _ := n.gap(p); left > 0 && place == "" {
			said = append(said, "", "gap")
		}
		return said
	}
	again, pause := false, releasePause
	for i := range tries {
		if i > 0 {
			if !n.rest(ctx, pause) {
				break
			}
			pause *= 4
		}
		var a *answer
		a, err = n.try(ctx, opRelease, keys, args)
		if err == nil {
			code, _ := number(a.reply, 0)
			if code == 2 {
				n.mute.Do(func() {
					n.cfg.Event(driver.Notice{Kind: driver.NoticeDegraded, Node: n.cfg.Addr, Detail: "PUBLISH is not allowed: who waits for a lock learns of its release by polling only (allow the channel " + n.cfg.Prefix + layout + "*)"})
				})
			}
			if code == 3 {
				n.hub.handed(key)
			}
			return code != 0 || again, nil
		}
		var reply ServerError
		if errors.As(err, &reply) && n.verdict(key, reply) != nil {
			return false, err
		}
		if i == 0 {
			ctx = within(ctx, 2*n.cfg.CallTimeout)
		}
		again = again || n.unknown(err)
	}
	return false, err
}

// rest pauses, and reports whether ctx and Close leave time to go on.
func (n *Node) rest(ctx context.Context, pause time.Duration) bool {
	return await(within(ctx, pause), n.over) != nil && ctx.Err() == nil
}

func (n *Node) try(ctx context.Context, o op, keys []string, args func(*process) []string) (*answer, error) {
	return n.fleet.run(within(ctx, n.cfg.CallTimeout), o, nil, 0, keys, nil, args)
}
