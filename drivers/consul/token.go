package consul

import (
	"context"
	"strconv"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/driver/base"
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
	return b.readBase(a)
}

// readBase reads the base from an answer.
func (b *Backend) readBase(a answer) (x *tokenBase, err error) {
	x = &tokenBase{}
	if p := a[b.baseKey()]; p != nil {
		x.index = p.ModifyIndex
		x.value, err = base.ParseBase(string(p.Value), layout, b.opt.Path)
	} else {
		b.seen.Store(0) // it may be another cluster
	}
	if err == nil {
		b.base.Store(x)
	}
	return x, err
}

// change carries out what ops returns for the base of a new token, if the expected base is there, which
// it returns. It raises that if tokens lag behind the clock.
func (b *Backend) change(ctx context.Context, ops func(base uint64) []*api.KVTxnOp) (answer, *tokenBase, error) {
	old, err := b.expect(ctx)
	if err != nil {
		return nil, nil, err
	}
	value, err := base.NextBase(old.value, b.seen.Load(), old.index != 0, b.now(), lag, 0)
	if err != nil {
		return nil, nil, err
	}
	expected := &api.KVTxnOp{Verb: api.KVCheckIndex, Key: b.baseKey(), Index: old.index}
	if value != old.value || old.index == 0 {
		expected = b.setBase(old, value)
	}
	done, err := b.commit(ctx, value, append(ops(value), expected)...)
	return done, old, err
}

// changed reports whether the base is certainly another one by now: after an outage one change undoes
// what many attempts left.
func (b *Backend) changed(old *tokenBase) bool {
	x := b.base.Load()
	return x != nil && x.index > old.index
}

// setBase stores a base if the expected one is there.
func (b *Backend) setBase(old *tokenBase, value uint64) *api.KVTxnOp {
	return &api.KVTxnOp{Verb: api.KVCAS, Key: b.baseKey(), Index: old.index, Value: []byte(layout + " " + strconv.FormatUint(value, 10))}
}

// commit carries operations out, and notes the base that they found or stored.
func (b *Backend) commit(ctx context.Context, value uint64, ops ...*api.KVTxnOp) (answer, error) {
	done, err := b.txn(ctx, ops...)
	if p := done[b.baseKey()]; p != nil {
		b.base.Store(&tokenBase{value, p.ModifyIndex})
	}
	return done, err
}
