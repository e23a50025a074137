package redisnode

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
)

// A Lease is one acquisition of one lock.
type Lease struct {
	node   *Node
	texts  *names.Texts
	value  string // the stored value: owner|token
	quorum *quorum.Info
	fence  uint64
	tokens uint32
	shared bool

	renewing sync.Mutex // one renewal at a time

	mu       sync.Mutex
	expires  time.Time
	clock    int64 // of the last answer, in Unix microseconds
	process  *process
	terms    *quorum.Terms
	inDoubt  *inDoubt // nil: nothing so far
	before   int64    // the key's counter before the grant
	released bool
	giveBack bool // for the next release: see GiveBack
	silent   bool // the same
}

// inDoubt is what may still take effect. Most leases have nothing of it, and a program holds many.
type inDoubt struct {
	tries          []*Call       // of the acquisition
	life           time.Duration // for how long the server keeps a lock of them
	expires, until time.Time     // of a renewal, which may take effect until then; zero: there was none
}

var (
	_ driver.Lease = (*Lease)(nil)
	_ async.Lease  = (*Lease)(nil)
	_ async.Vote   = (*Lease)(nil)
)

// Grant returns the grant of the last success.
func (l *Lease) Grant() driver.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return driver.Grant{Expires: l.expires, Fence: l.fence, Tokens: l.tokens, Clock: time.UnixMicro(l.clock), Server: l.process.run, Terms: l.terms}
}

// Renew extends the lease, if this acquisition still has the lock. Renewals of one
// lease go one after the other.
func (l *Lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	if err := l.checkRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	ctx = async.Within(ctx, l.node.timeout(max(r.TTL, r.Keep)))
	l.renewing.Lock()
	defer l.renewing.Unlock()
	t := l.renewal(r)
	return t.end(t.run(ctx))
}

// StartRenew is Renew without waiting: see package async.
func (l *Lease) StartRenew(term async.Term, r *driver.Renewal, receiver async.Receiver) bool {
	if l.checkRenewal(r) != nil || !l.renewing.TryLock() {
		return false
	}
	t := l.renewal(r)
	if !t.start(term, l.node.timeout(max(r.TTL, r.Keep)), receiver) {
		reuse(&t.node.renewals, t, &t.operation)
		l.renewing.Unlock()
		return false
	}
	return true
}

func (l *Lease) checkRenewal(r *driver.Renewal) error {
	n := l.node
	if err := n.Info().CheckRenewal(r); err != nil {
		return err
	}
	if r.MinFence > driver.MaxFence {
		return driver.Invalid("MinFence", "%d is over the largest token, %d", r.MinFence, uint64(driver.MaxFence))
	}
	if n.closed.Load() {
		return driver.ErrClosed
	}
	if over, _ := l.over(); over {
		return driver.ErrLost
	}
	return nil
}

// A renewal is one Renew. No other renewal of the lease runs meanwhile.
type renewal struct {
	operation
	lease           *Lease
	px, least, life string // ARGV
	keep            string
	grant           driver.Grant
}

func (l *Lease) renewal(r *driver.Renewal) *renewal {
	n := l.node
	t := reused[renewal](&n.renewals)
	t.node, t.part, t.op, t.texts, t.shared, t.quorum, t.q, t.ttl = n, t, lua.Renew, l.texts, l.shared, l.quorum, n.guard.of(l.quorum), r.TTL
	t.lease, t.px, t.least, t.keep = l, "0", strconv.FormatUint(r.MinFence, 10), millis(r.Keep)
	if r.TTL > 0 { // else the holder is done
		t.px = n.span(r.TTL, l.quorum).px
	}
	t.life = n.span(max(r.TTL, r.Keep), l.quorum).life
	if l.shared {
		t.op = lua.RenewShared
	}
	t.fence(false)
	return t
}

// end returns the result of a renewal, and frees it.
func (t *renewal) end(err error) (driver.Grant, error) {
	n, key, grant := t.node, t.texts.Key, t.grant
	reuse(&n.renewals, t, &t.operation)
	return grant, n.explain(key, err)
}

func (t *renewal) args(c *Call, args []string) []string {
	return append(args, strconv.FormatInt(c.process.clock.at(t.deadline), 10), t.lease.value, t.px, t.least, t.life, t.keep)
}

// tell lets the next renewal of the lease run, and gives the receiver the result.
func (t *renewal) tell(err error) {
	t.lease.renewing.Unlock()
	receiver := t.receiver
	receiver.Renewed(t.end(err))
}

func (t *renewal) heard(c *Call, err error, late bool) error {
	l, n := t.lease, t.node
	if err != nil {
		if !n.unknown(err) {
			return err
		}
		l.noteInDoubt(driver.Expires(c.sent, t.ttl), t.deadline)
		return t.failed(err, late)
	}
	clock := c.learn(1)
	switch code, ok := number(c.Reply, 0); {
	case !ok:
	case code == 1:
		if err := n.replicated(c); err != nil {
			l.noteInDoubt(driver.Expires(c.sent, t.ttl), time.Now())
			return err
		}
		l.extend(c, clock, t.ttl)
		t.grant = l.Grant()
		return nil
	case code == 0:
		return driver.ErrLost
	case code == -1:
		return t.tooLate()
	}
	l.noteInDoubt(driver.Expires(c.sent, t.ttl), t.deadline)
	return errGarbled
}

// noteInDoubt notes a renewal that may still take effect before until: a later and longer renewal
// must not promise more than this one would leave.
func (l *Lease) noteInDoubt(expires, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inDoubt == nil {
		l.inDoubt = &inDoubt{}
	}
	d := l.inDoubt
	if d.until.Before(time.Now()) || expires.Before(d.expires) {
		d.expires = expires
	}
	if until.After(d.until) {
		d.until = until
	}
}

func (l *Lease) extend(c *Call, clock time.Time, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expires = driver.Expires(c.sent, ttl)
	if d := l.inDoubt; d != nil && c.received.Before(d.until) && d.expires.Before(l.expires) {
		l.expires = d.expires
	}
	l.clock, l.process, l.terms = clock.UnixMicro(), c.process, nil
	if l.quorum != nil && c.guard != nil {
		l.terms = &c.guard.terms // with which a quorum's node answered
	}
}

// over reports whether the lease was released. If its vote is given back, it also returns the earlier tries
// of the acquisition: until they are answered the counter before it is unknown.
func (l *Lease) over() (over bool, awaits []*Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.giveBack && l.inDoubt != nil {
		awaits = l.inDoubt.tries
	}
	return l.released, awaits
}

// GiveBack is for a quorum: see package async. It does nothing where the counter before the grant is
// unknown.
func (l *Lease) GiveBack(silent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.giveBack, l.silent = !l.node.cfg.Repeats, silent
}

// releasing makes the release of the lease.
func (l *Lease) releasing() *releasing {
	t := l.node.releasing(l.texts, l.value, "", l.shared)
	t.lease, t.once = l, l.quorum != nil
	l.mu.Lock()
	defer l.mu.Unlock()
	giveBack, before := l.giveBack, l.before
	t.silent, l.silent, l.giveBack = l.silent, false, false
	if d := l.inDoubt; giveBack && d != nil && len(d.tries) > 0 {
		tries := d.tries
		if slices.ContainsFunc(tries, func(c *Call) bool { return !l.node.answered(c) }) {
			before = unknown
		} else if fence, counter := l.node.votes(tries); before == unknown && uint64(fence) == l.fence {
			before = counter
		}
	}
	if giveBack && before != unknown {
		t.giveBackTo(before)
	}
	return t
}

// voteWait bounds the wait for one of them. The answers come together, after a server that hung.
const voteWait = 50 * time.Millisecond

// Release frees the lock, if this acquisition has it, and wakes its waiters. It works after ctx
// has ended, and takes at most a call timeout; for a node of a quorum it ends at the deadline of a
// ctx that has not ended. If its outcome is unknown then, it is repeated in the background.
func (l *Lease) Release(ctx context.Context) error {
	n := l.node
	if n.closed.Load() {
		return driver.ErrClosed
	}
	over, awaits := l.over()
	if over {
		return nil
	}
	if l.quorum == nil || ctx.Err() != nil {
		ctx = async.Detached(ctx, n.cfg.CallTimeout)
	}
	for _, c := range awaits {
		_ = async.Await(async.Within(ctx, voteWait), c.done)
	}
	found, err := l.releasing().do(ctx)
	return l.freed(ctx, found, err)
}

// StartRelease is Release without waiting: see package async.
func (l *Lease) StartRelease(term async.Term, r async.Receiver) bool {
	n := l.node
	if over, awaits := l.over(); over || awaits != nil || n.closed.Load() {
		return false
	}
	t := l.releasing()
	if !t.start(term, n.cfg.CallTimeout, r) {
		reuse(&n.releasings, t, &t.operation)
		return false
	}
	return true
}

// freed ends the lease after its release.
func (l *Lease) freed(ctx context.Context, found bool, err error) error {
	n := l.node
	if err != nil {
		if !n.final(err) {
			life := time.Until(l.Grant().Expires) + n.cfg.CallTimeout
			if l.quorum != nil {
				life += l.quorum.Grace
			}
			n.cleanUp(ctx, unsettled{key: l.texts.Key, value: l.value, shared: l.shared, life: life})
		}
		return n.explain(l.texts.Key, err)
	}
	l.mu.Lock()
	first, d := !l.released, l.inDoubt
	l.released = true
	l.mu.Unlock()
	if !first {
		return nil
	}
	if d != nil && len(d.tries) > 0 { // one of them may still arrive
		owner, _, _ := strings.Cut(l.value, "|")
		n.cleanUp(ctx, unsettled{key: l.texts.Key, value: owner + "|", shared: l.shared, life: d.life, late: d.tries})
	}
	if !found {
		return driver.ErrLost
	}
	return nil
}
