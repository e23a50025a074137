package sqltable

import (
	"cmp"
	"context"
	"database/sql"
	"math/bits"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

const (
	// DefaultTable is the table of the locks.
	DefaultTable = "dlock"
	// DefaultCallTimeout bounds one call to the server.
	DefaultCallTimeout = time.Second

	// maxRowWait is how long a statement waits at most for a row that another transaction has
	// locked, where the driver can choose it.
	maxRowWait = time.Second
	// maxSlots is how many statements a backend has under way at most on a *sql.DB without a
	// limit of connections.
	maxSlots = 64
	minTTL   = 100 * time.Millisecond // twice the least time of a call: see base.Calls.Bound
	maxTTL   = 365 * 24 * time.Hour
)

// Options are the settings of a backend. The zero value of each field is its default, and so is
// a nil *Options.
type Options struct {
	// Prefix goes before every key.
	Prefix string
	// Table is the table of the locks, "dlock" by default; "schema.table" names one in a
	// schema. All clients that share locks must name the same table. The name has ASCII
	// letters, digits and '_'.
	Table string
	// Setup makes the table, and the file of a sqlite: URL, at the first call if it is missing. By
	// default a missing table is a refusal, whose text has the statement that makes it.
	Setup bool
	// CallTimeout bounds one call, including its wait for a connection; a second by default.
	// Half of the TTL bounds it too. The server refuses statements that arrive after this time.
	CallTimeout time.Duration
	// SingleWriter says that all clients use the same node of a cluster in which every node
	// takes writes (Galera, group replication). Without it such a cluster is refused, because
	// the clocks of its nodes differ. MySQL only.
	SingleWriter bool
	// Address is the text with which that of String begins: the server's address without any secret.
	Address string

	_ struct{}
}

// Backend keeps locks in one table of a database.
type Backend struct {
	db      *sql.DB
	dialect Dialect
	opt     Options
	info    driver.Info
	sql     statements
	clock   clock

	// attempts, others and undoing have an element for each statement that is under way at the
	// server: of calls of Acquire, of other calls, and of what is undone. That of an abandoned statement leaves when the server has
	// certainly ended it: see leaveSlot. The attempts on a locked row keep no lease from its renewal.
	attempts, others, undoing chan struct{}

	rowWait atomic.Int64 // how long a statement waits for a locked row at most, a time.Duration

	greeting chan struct{}             // full while a call asks the first question
	greeted  atomic.Pointer[time.Time] // when the server was last greeted; nil: greet it before the next call
	calls    base.Calls

	mu      sync.Mutex
	held    map[string]time.Time // keys that were held at this time: see wasHeld
	cleaned time.Time            // when the last clean-up began
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
	_ driver.Admin     = (*Backend)(nil)
)

// New returns a backend on a database that the program has opened. db uses the dialect d and
// reaches one server that takes writes. Its connections commit each statement by itself, as
// they do by default. A client that reads the end of a result without a context, as
// go-sql-driver/mysql does, needs a read timeout (its ReadTimeout), or a call may hang. New does
// no I/O.
func New(db *sql.DB, d Dialect, o *Options) (*Backend, error) {
	opt := base.Given(o)
	opt.Table = cmp.Or(opt.Table, DefaultTable)
	switch {
	case db == nil:
		return nil, driver.Invalid("db", "is nil")
	case d < MySQL || d > SQLite:
		return nil, driver.Invalid("dialect", "%d is unknown", d)
	case !tableName.MatchString(opt.Table):
		return nil, driver.Invalid("table", "must be a name of ASCII letters, digits and '_', or schema.name")
	}
	slots := db.Stats().MaxOpenConnections
	if slots <= 0 {
		slots = maxSlots
	}
	b := &Backend{
		db: db, dialect: d, opt: opt, held: map[string]time.Time{}, attempts: make(chan struct{}, slots), others: make(chan struct{}, slots), undoing: make(chan struct{}, 1), greeting: make(chan struct{}, 1),
		info: driver.Info{
			Name: d.String(), Features: driver.FeatureShared | driver.FeatureFencing | driver.FeatureKeep | driver.FeatureTokens,
			MinTTL: minTTL, MaxTTL: maxTTL,
		},
	}
	if err := b.calls.Setup(d.String(), opt.Prefix, &b.opt.CallTimeout); err != nil {
		return nil, err
	}
	wait := min(maxRowWait, b.opt.CallTimeout) * 4 / 5 // so that the answer comes before the call ends
	b.sql = d.texts(opt.Table, wait)
	b.rowWait.Store(int64(2 * wait)) // a busy server begins late, and ends late
	b.clock.base = time.Now()
	return b, nil
}

// Info describes the backend.
func (b *Backend) Info() driver.Info { return b.info }

// String returns the server's address, and the table if it is another than DefaultTable, without any secret.
func (b *Backend) String() string {
	address := cmp.Or(b.opt.Address, b.info.Name)
	if b.opt.Table != DefaultTable {
		address += "?table=" + url.QueryEscape(b.opt.Table)
	}
	return address
}

// Acquire makes one attempt: one statement if the key was used before and is free. It does not
// wait, because the server cannot signal a release.
func (b *Backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if err := b.info.Check(b.opt.Prefix, req); err != nil {
		return nil, err
	}
	if len(req.Owner) > maxOwner {
		return nil, driver.Invalid("owner", "has %d bytes, the limit is %d", len(req.Owner), maxOwner)
	}
	under, err := b.calls.Begin(ctx, b.calls.Bound(req.TTL))
	if err != nil {
		return nil, err
	}
	defer under.End()
	a := &attempt{
		call:  &call{Call: under, b: b, slots: b.attempts},
		claim: claim{name: []byte(b.opt.Prefix + req.Key), owner: []byte(req.Owner), shares: req.Mode == driver.Shared},
		ttl:   req.TTL, floor: int64(min(req.FenceFloor, driver.MaxFence)),
	}
	if req.Tokens > 1 && !a.shares { // a power of two, for few texts of statements
		a.tokens = 1 << (bits.Len32(req.Tokens) - 1)
		a.owner = []byte(base.Ranged(req.Owner, a.tokens))
	}
	l, err := a.run()
	if err != nil {
		return nil, err
	}
	b.cleanUp()
	return l, nil
}

// An attempt is a call of Acquire under way.
type attempt struct {
	*call
	claim
	tokens uint32 // the length of the range; zero: one token
	ttl    time.Duration
	floor  int64
	start  time.Time // before the first statement that may take the lock
	sent   bool      // true: such a statement may have taken effect
}

// A claim is what an attempt has, and its lease: an owner, and statements that make it that of a key.
type claim struct {
	name, owner []byte
	shares      bool  // it is for the shared mode
	latest      int64 // by the server's clock: it refuses such a statement that arrives later
	again       bool  // such a statement was sent more than once
}

// run repeats statements until there is a verdict. There is a further round only if another
// client took or freed the key meanwhile.
func (a *attempt) run() (_ driver.Lease, err error) {
	defer func() {
		if err != nil && a.sent {
			end, _ := a.Deadline()
			a.b.undoLater(end.Add(a.ttl+time.Second), a.claim)
		}
	}()
	if a.shares {
		return a.share()
	}
	if err := a.greet(); err != nil {
		return nil, err
	}
	if a.b.wasHeld(a.name) {
		if r, err := a.settleRest(a.name); err != nil || r.held() && !r.kept() && r.owner != string(a.owner) {
			if r.shared() { // and this writer, which has come before, waits
				_, _ = a.exec(a.b.sql.close, a.name, micros(writerWaits), micros(writerWaits/2))
			}
			return nil, a.b.sawHeld(&r, err)
		}
	}
	text := a.b.sql.take
	for grown := false; ; {
		l, err := a.make(text, a.name, a.owner, micros(a.ttl))
		if l != nil || err != nil {
			return l, err
		}
		r, err := a.settleRest(a.name)
		if err != nil {
			return nil, err
		}
		switch {
		case r.exists && r.owner == string(a.owner): // a request that the client repeated
			return a.granted(r.fence), nil
		case r.kept():
			text = a.b.sql.takeKept
		case r.held():
			return nil, a.b.sawHeld(&r, nil)
		case r.exists && r.fence+uint64(max(a.tokens, 1)) > driver.MaxFence:
			return nil, a.b.tokensEnd()
		case r.now > a.notAfter():
			// The estimate of the server's clock was wrong, and is now corrected.
		case !r.exists:
			if l, err = a.make(a.b.sql.grow, a.name, a.owner, micros(a.ttl)); l != nil || err != nil {
				return l, err
			}
			if grown { // no other client made the row: the mark is gone, or has another layout
				a.b.forget()
				if err := a.greet(); err != nil {
					return nil, err
				}
			}
			grown = true
		}
		if err := a.Over(); err != nil {
			return nil, err
		}
	}
}

// recently is how long an attempt on a key that was held begins with a look: a waiter's poll is then
// one statement that locks nothing, and not two.
const recently = 2 * time.Second

// wasHeld reports whether the key was held recently.
func (b *Backend) wasHeld(name []byte) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Since(b.held[string(name)]) < recently
}

// sawHeld returns the verdict for a held key, and remembers it.
func (b *Backend) sawHeld(r *row, err error) error {
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.held) > 1000 {
		clear(b.held) // it saves statements, and no more
	}
	b.held[r.name] = time.Now()
	return r.heldError()
}

func (b *Backend) tokensEnd() error {
	return &driver.RefusedError{Reason: b.info.Name + ": the fencing token of this key is at its end"}
}

// make sends a statement that may take the lock, with its first arguments. If it had no effect, make
// returns neither a lease nor an error.
func (a *attempt) make(text string, args ...any) (driver.Lease, error) {
	if a.start.IsZero() {
		a.start = time.Now()
	}
	notAfter := a.notAfter()
	a.latest = max(a.latest, notAfter)
	fence, ok, err := a.fence(ranged(text, a.tokens), append(args, notAfter, a.floor)...)
	a.again = a.again || a.repeated
	a.sent = a.sent || a.repeated || err != nil && a.asked && !nothingHappened(err)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, nil
	}
	return a.granted(uint64(fence)), nil
}

func (a *attempt) granted(fence uint64) driver.Lease {
	a.b.mu.Lock()
	delete(a.b.held, string(a.name)) // the next attempt of a lone user is one statement again
	a.b.mu.Unlock()
	l := &lease{claim: a.claim, b: a.b, fence: int64(fence)}
	l.Lease = base.NewLease(&a.b.calls, a.b.info, driver.Grant{Expires: driver.Expires(a.start, a.ttl), Fence: fence, Tokens: a.tokens}, l.renew, l.release)
	return l.Lease
}

// Close ends the calls under way, and returns when all goroutines of the backend have ended. It
// waits at most one call timeout for the clean-up of failed attempts, those that it has ended
// included. Held leases stay until their TTL. The database stays open.
func (b *Backend) Close() error {
	b.calls.Close()
	return nil
}
