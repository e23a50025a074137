package consul

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/driver"
)

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

// now is the agent's time, or this machine's.
func (b *Backend) now() time.Time {
	if b.transport != nil {
		return b.transport.clock()
	}
	return time.Now()
}

// saw notes an index that a server answered with.
func (b *Backend) saw(index uint64) {
	for old := b.seen.Load(); index > old && !b.seen.CompareAndSwap(old, index); old = b.seen.Load() {
	}
}

// expect returns the base that the servers most likely have.
func (b *Backend) expect(ctx context.Context) (*tokenBase, error) {
	if x := b.base.Load(); x != nil {
		return x, nil
	}
	a, err := b.txn(ctx, get(b.baseKey()))
	if err != nil {
		return nil, err
	}
	return b.noteBase(a)
}

// noteBase reads the base from an answer.
func (b *Backend) noteBase(a answer) (*tokenBase, error) {
	x := &tokenBase{}
	if p := a[b.baseKey()]; p != nil {
		version, number, _ := strings.Cut(string(p.Value), " ")
		value, err := strconv.ParseUint(number, 10, 64)
		if version != layout || err != nil || value > driver.MaxFence {
			return nil, &driver.RefusedError{Reason: "another release of this driver has stored locks under " + strconv.Quote(b.opt.Path) +
				" in a layout that this one does not know: use that release, or another path"}
		}
		x.value, x.index = value, p.ModifyIndex
	}
	b.base.Store(x)
	return x, nil
}

// raised returns the base with which a lock is taken, and the operation that requires the expected
// base, or raises it if tokens lag behind the clock. Otherwise the base stays as it is.
func (b *Backend) raised(old *tokenBase) (uint64, *api.KVTxnOp, error) {
	at := b.now()
	seen := b.seen.Load()
	if old.index != 0 && at.Add(-lag).UnixMicro() <= int64(old.value+seen) {
		return old.value, &api.KVTxnOp{Verb: api.KVCheckIndex, Key: b.baseKey(), Index: old.index}, nil
	}
	us := at.UnixMicro()
	if old.index == 0 {
		seen = 0 // it may be another cluster
	}
	if us < int64(seen) || us > driver.MaxFence/2 {
		return 0, nil, &driver.RefusedError{Reason: "the clock says " + at.UTC().Format(time.RFC3339) + ", which is out of the range of tokens: set it"}
	}
	value := max(uint64(us)-seen, old.value+1)
	return value, b.setBase(old, value), nil
}

// change carries out what ops returns for the base of a new token, if the expected base is there.
func (b *Backend) change(ctx context.Context, old *tokenBase, ops func(base uint64) []*api.KVTxnOp) (answer, error) {
	value, expected, err := b.raised(old)
	if err != nil {
		return nil, err
	}
	done, err := b.txn(ctx, append(ops(value), expected)...)
	b.keepBase(done, value)
	return done, err
}

// setBase stores a base if the expected one is there.
func (b *Backend) setBase(old *tokenBase, value uint64) *api.KVTxnOp {
	return &api.KVTxnOp{Verb: api.KVCAS, Key: b.baseKey(), Index: old.index, Value: []byte(layout + " " + strconv.FormatUint(value, 10))}
}

// keepBase notes the base that a transaction found or stored.
func (b *Backend) keepBase(a answer, value uint64) {
	if p := a[b.baseKey()]; p != nil {
		for old := b.base.Load(); old == nil || old.index < p.ModifyIndex; old = b.base.Load() {
			if b.base.CompareAndSwap(old, &tokenBase{value, p.ModifyIndex}) {
				return
			}
		}
	}
}
