package consul

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// What is stored under the path:
//
//	KEY                  the lock, with the session of its holder, its owner and the base as its value
//	.dlock/base          "dlock1 BASE": the version of this layout, and the base of the tokens
//	.dlock/q/KEY/        there are waiters: its value changes with each that comes
//	.dlock/q/KEY/S/N     the waiter N of the session S, held by the session, with its owner
//	.dlock/m/S/          held by the session S, which has waiters
//	.dlock/m/S/N         the waiter N of the session S has got its lock
//
// KEY is the prefix and the key, percent-encoded. What a session holds is deleted with it.
const (
	layout   = "dlock1"
	dotDlock = ".dlock"
)

// lockFlags are the flags of the api's own Lock, without which it refuses the key.
const lockFlags = 0x2ddccbc058a50c18

// Path returns the key under which the lock of key is stored. The api's Lock of it and this
// backend's lock of key exclude each other.
func (b *Backend) Path(key string) string {
	return b.opt.Path + "/" + strings.ReplaceAll(url.QueryEscape(b.opt.Prefix+key), "+", "%20")
}

func (b *Backend) root() string    { return b.opt.Path + "/" + dotDlock + "/" }
func (b *Backend) baseKey() string { return b.root() + "base" }

// queue returns the key below which the waiters of a lock are.
func (b *Backend) queue(lock string) string {
	return b.root() + "q" + strings.TrimPrefix(lock, b.opt.Path) + "/"
}

// entry is the value of a lock or of a waiter.
func entry(owner string, number uint64) []byte {
	return []byte(base.EntryValue(layout, number, owner, 0))
}

// holder reads the owner of a lock or of a waiter, and the token of a lock: the base, and the index of the
// transaction that made its key. The owner of another program's lock is its session, and the token is
// the index of its last change.
func holder(p *api.KVPair) driver.Holder {
	number, owner, _, ours := base.ParseEntry(string(p.Value[:min(len(p.Value), 4096)]), layout)
	if !ours || p.CreateIndex > driver.MaxFence-number {
		return driver.Holder{Owner: "session " + p.Session, Fence: p.ModifyIndex}
	}
	return driver.Holder{Owner: owner, Fence: number + p.CreateIndex}
}

// Verdicts of a transaction that did nothing.
var (
	errConflict  = errors.New("another client was first")
	errNoSession = errors.New("the session has ended")
	errNoLeader  = errors.New("the servers have no leader")
)

// inDoubt reports whether a request with this error may have had an effect, or may have one yet.
func inDoubt(err error) bool {
	sure := err == nil || unsent(err) || errors.Is(err, errConflict) || errors.Is(err, errNoSession)
	return !sure && !errors.Is(err, driver.ErrRefused) && !errors.Is(err, driver.ErrHeld)
}

// forbidden reports whether the servers refuse the request, and would again.
func forbidden(err error) bool {
	var no *driver.RefusedError
	return errors.As(err, &no) && no.RetryAfter == 0
}

// lockDelay is the holder of a lock that another program's session left with a lock-delay.
const lockDelay = "the lock-delay of a session that has ended"

// unsent reports whether no server took the request.
func unsent(err error) bool {
	var dial *net.OpError
	return errors.Is(err, errNoLeader) || errors.As(err, &dial) && dial.Op == "dial"
}

// request makes a request within the call timeout, and explains its error.
func (b *Backend) request(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, b.opt.CallTimeout)
	defer cancel()
	err := base.Again(ctx, unsent, func(ctx context.Context) (err error) {
		defer base.Contain(&err)
		return explain(f(ctx))
	})
	if inDoubt(err) { // the connection ended: whoever asks again at once finds that again
		base.Pause(ctx, 100*time.Millisecond)
	}
	return err
}

// explain returns the error of this driver for what the server or the client said.
func explain(err error) error {
	if err == nil || errors.Is(err, errNoSession) || errors.Is(err, errNoLeader) {
		return err
	}
	text := strings.Join(strings.Fields(err.Error()), " ")
	said := fmt.Errorf("%.300s", text) // of any length
	says := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
	}
	refused := func(wait time.Duration, reason string) error {
		return &driver.RefusedError{Reason: reason, RetryAfter: wait, Err: said}
	}
	var network *url.Error
	switch {
	case errors.As(err, &network): // it may quote anything
		return network.Err
	case says("Permission denied", "ACL not found", "code: 403"):
		return refused(0, "the token lacks a permission: see the package's documentation")
	case says("Invalid Session TTL"):
		return refused(0, "the servers' session_ttl_min is longer than this TTL: give it as the parameter session_ttl_min")
	case says("unknown KV verb"):
		return refused(0, "the servers are older than Consul 1.14")
	case says("rate limit", "code: 429"):
		return refused(time.Second, "the server has too many requests")
	case says("No cluster leader", "failed to get conn"): // an agent sent it to no server
		return fmt.Errorf("%w: %w", errNoLeader, said)
	case says("invalid session"):
		return errNoSession
	case says("due to lock delay"):
		return &driver.HeldError{Holder: lockDelay}
	case says("doesn't exist", " exists", "index is stale", "current modify index", "already held"):
		return errConflict
	}
	return said
}

// An answer is that of a transaction: what it read and wrote, by key.
type answer map[string]*api.KVPair

// txn carries operations out, all or none. One that only reads is answered by a leader that a
// majority has just confirmed.
func (b *Backend) txn(ctx context.Context, ops ...*api.KVTxnOp) (answer, error) {
	var said *api.KVTxnResponse
	err := b.request(ctx, func(ctx context.Context) (err error) {
		_, said, _, err = b.client.KV().Txn(ops, consistent(ctx))
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, e := range said.Errors {
		if err = explain(errors.New(cmp.Or(e, &api.TxnError{What: "an error without a text"}).What)); !errors.Is(err, errConflict) {
			return nil, err
		}
	}
	a := answer{}
	for _, p := range said.Results {
		switch {
		case p == nil || p.ModifyIndex == 0: // it is not there
		case p.ModifyIndex > driver.MaxFence:
			return nil, errors.New("the server's answer has an index that is out of range")
		default:
			a[p.Key] = p
			b.saw(p.ModifyIndex)
		}
	}
	for _, op := range ops {
		if err == nil && op.Verb == api.KVLock && a[op.Key] == nil {
			err = errors.New("the server's answer leaves out the key that it locked")
		}
	}
	return a, err
}

// consistent lets a leader answer that a majority has just confirmed.
func consistent(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
}

// Operations of a transaction.

func get(key string) *api.KVTxnOp   { return &api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: key} }
func below(key string) *api.KVTxnOp { return &api.KVTxnOp{Verb: api.KVGetTree, Key: key} }
func drop(key string) *api.KVTxnOp  { return &api.KVTxnOp{Verb: api.KVDelete, Key: key} }

func hold(key, session string, value []byte) *api.KVTxnOp {
	return &api.KVTxnOp{Verb: api.KVLock, Key: key, Session: session, Value: value, Flags: lockFlags}
}

// remove deletes a key that is as it was read, and for one that was not there requires that it is not.
// (A delete-cas of a key that is not there succeeds.)
func remove(key string, p *api.KVPair) []*api.KVTxnOp {
	if p == nil {
		return []*api.KVTxnOp{{Verb: api.KVCheckNotExists, Key: key}}
	}
	return []*api.KVTxnOp{{Verb: api.KVCheckIndex, Key: key, Index: p.ModifyIndex}, drop(key)}
}

// A token is a base plus the index of the transaction that took the lock. Indexes rise with every
// write of the datacenter, and the base never falls, so that tokens rise over all keys: each such
// transaction does nothing if the base is not the expected one.
type tokenBase struct {
	value uint64
	index uint64 // of its last change; 0: nothing is stored yet
}

// lag is how far tokens may fall behind the clock before a lock raises the base. Other attempts under
// way then conflict, so it is not less.
const lag = 200 * time.Millisecond

// saw notes an index that a server answered with.
func (b *Backend) saw(index uint64) {
	for old := b.seen.Load(); index > old && !b.seen.CompareAndSwap(old, index); old = b.seen.Load() {
	}
}

// readBase reads the base from an answer.
func (b *Backend) readBase(a answer) (err error) {
	var x tokenBase
	if p := a[b.baseKey()]; p != nil {
		x.index = p.ModifyIndex
		x.value, err = base.ParseBase(string(p.Value), layout, b.opt.Path)
	} else {
		b.seen.Store(0) // it may be another cluster
	}
	if err == nil {
		b.base.Store(&x)
	}
	return err
}

// change carries out what ops returns for the base of a new token, if the expected base is there, which
// it returns. It raises that if tokens lag behind the clock.
func (b *Backend) change(ctx context.Context, ops func(base uint64) []*api.KVTxnOp) (answer, *tokenBase, error) {
	old := b.base.Load()
	value, err := base.NextBase(old.value, b.seen.Load(), old.index != 0, b.now(), lag, 0)
	if err == nil && value > driver.MaxFence/2 {
		err = &driver.RefusedError{Reason: "the tokens of the locks under " + strconv.Quote(b.opt.Path) + " are at their end: use another path"}
	}
	if err != nil {
		return nil, nil, err
	}
	done, err := b.commit(ctx, old, value, ops(value)...)
	return done, old, err
}

// commit carries operations out if the base is the old one, which gets this value, and notes what it is.
func (b *Backend) commit(ctx context.Context, old *tokenBase, value uint64, ops ...*api.KVTxnOp) (answer, error) {
	expected := &api.KVTxnOp{Verb: api.KVCheckIndex, Key: b.baseKey(), Index: old.index}
	if value != old.value || old.index == 0 {
		expected.Verb, expected.Value = api.KVCAS, []byte(layout+" "+strconv.FormatUint(value, 10))
	}
	ops = append(ops, expected)
	if old.index == 0 { // a server that is too old for reads refuses this
		ops = append(ops, get(b.baseKey()))
	}
	done, err := b.txn(ctx, ops...)
	if p := done[b.baseKey()]; p != nil {
		b.base.Store(&tokenBase{value, p.ModifyIndex})
	}
	return done, err
}
