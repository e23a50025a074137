package consul

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// What is stored under the path:
//
//	KEY                  the lock, with the session of its holder and a record as its value
//	.dlock/base          "dlock1 BASE": the version of this layout, and the base of the tokens
//	.dlock/q/KEY/        there are waiters: its value changes with each that comes
//	.dlock/q/KEY/S.N     the waiter N of the session S, held by the session, with a record
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

// A record is the value of a lock or of a waiter.
type record struct {
	Owner string `json:"owner"`
	Base  uint64 `json:"base,omitempty"`     // of the token: see fence
	Since int64  `json:"since_us,omitempty"` // since when it has the lock or waits, by the agent's clock
}

func (r record) text() []byte {
	text, _ := json.Marshal(r) //nolint:errcheck // it has nothing that could fail
	return text
}

// parse reads a lock or a waiter. The owner of another program's lock is its session.
func parse(p *api.KVPair) record {
	var r record
	if len(p.Value) > 4096 || json.Unmarshal(p.Value, &r) != nil || r.Owner == "" || r.Base > driver.MaxFence || p.CreateIndex > driver.MaxFence-r.Base || r.Since < 0 || r.Since > driver.MaxFence {
		r = record{Owner: "session " + p.Session}
	}
	return r
}

// fence is the token of a lock: the base, and the index of the transaction that made its key. That
// of another program's lock is the index of its last change.
func fence(p *api.KVPair) uint64 {
	if r := parse(p); r.Base != 0 {
		return r.Base + p.CreateIndex
	}
	return p.ModifyIndex
}

func holder(p *api.KVPair) driver.Holder {
	r := parse(p)
	h := driver.Holder{Owner: r.Owner, Fence: fence(p)}
	if r.Since != 0 {
		h.Since = time.UnixMicro(r.Since)
	}
	return h
}

// Verdicts of a transaction that did nothing.
var (
	errConflict  = errors.New("another client was first")
	errNoSession = errors.New("the session has ended")
	errNoLeader  = errors.New("the servers have no leader")
)

// inDoubt reports whether a request with this error may have had an effect, or may have one yet.
func inDoubt(err error) bool {
	if err == nil || unsent(err) {
		return false
	}
	for _, sure := range []error{errConflict, errNoSession, driver.ErrRefused, driver.ErrHeld} {
		if errors.Is(err, sure) {
			return false
		}
	}
	return true
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
	err := base.Again(ctx, unsent, func(ctx context.Context) error { return explain(f(ctx)) })
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

// tree returns what sessions hold below a key, in the order in which it was made.
func (a answer) tree(below string) (found []*api.KVPair) {
	for key, p := range a {
		if strings.HasPrefix(key, below) && p.Session != "" {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(x, y *api.KVPair) int { return cmp.Compare(x.CreateIndex, y.CreateIndex) })
	return found
}

// txn carries operations out, all or none. One that only reads is answered by a leader that a
// majority has just confirmed.
func (b *Backend) txn(ctx context.Context, ops ...*api.KVTxnOp) (answer, error) {
	all := make(api.TxnOps, len(ops))
	for i, op := range ops {
		all[i] = &api.TxnOp{KV: op}
	}
	var said *api.TxnResponse
	err := b.request(ctx, func(ctx context.Context) (err error) {
		_, said, _, err = b.client.Txn().Txn(all, (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx))
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, e := range said.Errors {
		if err = explain(errors.New(e.What)); !errors.Is(err, errConflict) {
			return nil, err
		}
	}
	a := answer{}
	for _, r := range said.Results {
		if r.KV != nil && r.KV.ModifyIndex > driver.MaxFence {
			return nil, errors.New("the server's answer has an index that is out of range")
		}
		if r.KV != nil && r.KV.ModifyIndex != 0 {
			a[r.KV.Key] = r.KV
			b.saw(r.KV.ModifyIndex)
		}
	}
	return a, err
}

// Operations of a transaction.

func get(key string) *api.KVTxnOp   { return &api.KVTxnOp{Verb: api.KVGetOrEmpty, Key: key} }
func there(key string) *api.KVTxnOp { return &api.KVTxnOp{Verb: api.KVGet, Key: key} }
func below(key string) *api.KVTxnOp { return &api.KVTxnOp{Verb: api.KVGetTree, Key: key} }
func drop(key string) *api.KVTxnOp  { return &api.KVTxnOp{Verb: api.KVDelete, Key: key} }

func set(key, value string) *api.KVTxnOp {
	return &api.KVTxnOp{Verb: api.KVSet, Key: key, Value: []byte(value)}
}

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
