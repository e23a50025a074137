package etcd

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// An attempt is one call of Acquire.
type attempt struct {
	place
	path  string
	spans []span // of the entries that exclude it, if they come before its own
	req   driver.Request
	from  time.Time         // the lease counts from here
	seen  *driver.HeldError // the holder that was seen last
	// before is the last entry before our own that excludes it, as of the revision at.
	before *mvccpb.KeyValue
	at     int64
}

// Acquire makes one attempt, or with req.Wait waits in the key's queue.
func (b *Backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	call, err := b.calls.BeginAcquire(ctx, b.info, b.opt.Prefix, req)
	if err != nil {
		return nil, err
	}
	defer call.End()
	path := b.Path(req.Key)
	a := &attempt{place: place{b: b}, path: path, spans: excluders(path, req.Mode), req: *req}
	if err = a.acquire(call); err == nil {
		return newLease(a), nil
	}
	a.leave()
	return nil, base.Waited(call.Failed(b.explain(err)), a.seen)
}

func (a *attempt) acquire(ctx context.Context) error {
	for again := false; ; again = true {
		err := a.once(ctx)
		switch {
		case again && !a.req.Wait:
			return err
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			a.s.retire() // the machine slept, or an operator revoked it
		case errors.Is(err, errGone) && a.req.Wait:
			// The lease ended while no server could be reached: go to the end of the queue.
		default:
			return err
		}
		a.leave()
	}
}

// once makes one attempt, or joins the key's queue and returns when it has the lock.
func (a *attempt) once(ctx context.Context) error {
	if !a.req.Wait {
		alone, err := a.enter(ctx)
		if err == nil && !alone {
			err = a.seen
		}
		return err
	}
	one, cancel := context.WithTimeout(ctx, a.b.opt.CallTimeout)
	alone, err := a.enter(one)
	cancel()
	for err == nil && !alone {
		alone, err = a.sleep(ctx)
	}
	return err
}

// leave gives up the attempt's entry, and its place in the session.
func (a *attempt) leave() {
	switch {
	case a.s == nil:
	case a.key != "":
		a.abandon()
	default:
		a.place.leave()
	}
	a.place, a.before, a.from = place{b: a.b}, nil, time.Time{}
}

// firsts returns requests for the first entry of each span.
func (a *attempt) firsts(more ...clientv3.OpOption) []clientv3.Op {
	var ops []clientv3.Op
	for _, s := range a.spans {
		opts := append(clientv3.WithFirstCreate(), clientv3.WithRange(s.to))
		ops = append(ops, clientv3.OpGet(s.from, append(opts, more...)...))
	}
	return ops
}

// looks returns requests for the last entry of each span, before a revision if that is not zero, and
// then for the first one.
func (a *attempt) looks(before int64, more ...clientv3.OpOption) []clientv3.Op {
	var ops []clientv3.Op
	for _, s := range a.spans {
		opts := append(clientv3.WithLastCreate(), clientv3.WithRange(s.to))
		if before != 0 {
			opts = append(opts, clientv3.WithMaxCreateRev(before-1))
		}
		ops = append(ops, clientv3.OpGet(s.from, append(opts, more...)...))
	}
	return append(ops, a.firsts(more...)...)
}

// hold notes the holder, from answers that begin with those to firsts, and reports whether there is one.
func (a *attempt) hold(responses []*etcdserverpb.ResponseOp) bool {
	first := pick(responses[:len(a.spans)], func(x, y *mvccpb.KeyValue) bool { return x.CreateRevision < y.CreateRevision })
	if first == nil {
		return false
	}
	e, _ := a.b.parse(first)
	a.seen = &driver.HeldError{Holder: e.Owner}
	return true
}

// look notes the last entry before our own, and the holder, from answers that begin with those to
// looks. It reports whether no entry is before our own.
func (a *attempt) look(responses []*etcdserverpb.ResponseOp, rev int64) (alone bool) {
	n := len(a.spans)
	a.at = rev
	a.before = pick(responses[:n], func(x, y *mvccpb.KeyValue) bool { return x.CreateRevision > y.CreateRevision })
	if a.before != nil {
		a.hold(responses[n:])
	}
	return a.before == nil
}

// pick returns the entry among the answers that is better than the others, nil if there is none.
func pick(responses []*etcdserverpb.ResponseOp, better func(x, y *mvccpb.KeyValue) bool) (best *mvccpb.KeyValue) {
	for _, r := range responses {
		if kvs := r.GetResponseRange().GetKvs(); len(kvs) > 0 && (best == nil || better(kvs[0], best)) {
			best = kvs[0]
		}
	}
	return best
}

// enter writes the attempt's entry: at the end of the queue if it waits, else only if no entry
// excludes it. It reports whether no entry does; otherwise a.seen has the holder.
func (a *attempt) enter(ctx context.Context) (alone bool, err error) {
	a.s = a.b.join(a.req.TTL)
	if err := a.s.keep(ctx, a.req.TTL/8); err != nil {
		return false, err
	}
	a.key = a.s.name(a.path, a.req.Mode)
	p := a.entry()
	sure, err := a.b.do(ctx, p)
	if !sure {
		a.doubt = p
	}
	switch {
	case err != nil:
	case p.answer.Succeeded:
		a.rev, a.fence = p.rev, p.base.value+uint64(p.rev)
		return a.settle(ctx, p)
	default:
		looked := p.answer.Responses
		if own := looked[len(looked)-1].GetResponseRange().GetKvs(); len(own) > 0 {
			return a.found(ctx, own[0])
		}
		if a.req.Wait || !a.hold(looked) {
			err = errForm // all conditions are true
		}
	}
	if sure {
		a.s.free(a.key)
		a.key = ""
	}
	return false, err
}

// entry returns the part that makes the entry. If it succeeds and the attempt waits, its answers begin
// with those to looks. If it fails, the last one is the entry itself, after those to firsts if the attempt
// does not wait.
func (a *attempt) entry() *part {
	key, owner, tokens, id := a.key, a.req.Owner, a.req.Tokens, a.s.id // add may be called when the attempt is over
	p := &part{
		path:      a.path,
		more:      uint64(max(tokens, 1)) - 1,
		otherwise: []clientv3.Op{clientv3.OpGet(key)},
		add: func(expected *tokenBase) clientv3.Op {
			return clientv3.OpPut(key, base.EntryValue(layout, expected.value, owner, tokens), clientv3.WithLease(id))
		},
	}
	if a.req.Wait || a.req.Mode == driver.Shared { // otherwise the span has the key
		p.conditions = append(p.conditions, clientv3.Compare(clientv3.CreateRevision(key), "=", 0))
	}
	if a.req.Wait {
		p.then = a.looks(0)
		return p
	}
	p.otherwise = append(a.firsts(), p.otherwise...)
	for _, s := range a.spans {
		p.conditions = append(p.conditions, clientv3.Compare(clientv3.CreateRevision(s.from), "=", 0).WithRange(s.to))
	}
	return p
}

// found adopts the entry that an earlier try wrote, and looks for entries before it.
func (a *attempt) found(ctx context.Context, kv *mvccpb.KeyValue) (alone bool, err error) {
	e, _ := a.b.parse(kv)
	if e.Owner != a.req.Owner {
		return false, errGone // another program has overwritten it
	}
	a.rev, a.fence = e.rev, e.Fence
	return a.confirm(ctx)
}

// settle reports whether the attempt has the lock by the answer that made its entry: no entry is
// before its own, and its lease is known to live.
func (a *attempt) settle(ctx context.Context, p *part) (alone bool, err error) {
	from, ok := a.s.covers(p.sent, p.term)
	if ok {
		a.from = from
	}
	switch {
	case a.fence > driver.MaxFence:
		return false, &driver.RefusedError{Reason: "the tokens of the locks under " + a.b.opt.Path + " are at their end: use another path"}
	case a.req.Wait && !a.look(p.answer.Responses, p.rev):
		return false, nil
	case ok:
		return true, nil
	}
	return a.confirm(ctx)
}

var (
	errGone     = errors.New("our entry is gone")
	errRestless = errors.New("the cluster changed its leader during each of three requests")
)

// confirm finds the attempt's own entry, and reports whether no entry is before it. The error is
// errGone if its own entry was removed.
func (a *attempt) confirm(ctx context.Context) (alone bool, err error) {
	p, from, err := a.check(ctx, a.req.TTL/8, a.looks(a.rev))
	if err != nil {
		return false, err
	}
	a.from = from
	return a.look(p.answer.Responses, p.rev), nil
}

// check finds the entry by a write, which a majority confirms, and returns the time from which its
// lease lasts. It keeps the lease alive unless that was done within this time. The error is errGone if
// the entry is certainly gone.
func (x *place) check(ctx context.Context, age time.Duration, look []clientv3.Op) (p *part, from time.Time, err error) {
	var alive error
	for range 3 {
		alive = x.s.keep(ctx, age)
		there := clientv3.Compare(clientv3.CreateRevision(x.key), "=", x.rev)
		p = &part{conditions: []clientv3.Cmp{there}, then: look}
		if _, err := x.b.do(ctx, p); err != nil {
			return nil, from, err
		}
		if !p.answer.Succeeded {
			return nil, from, errGone
		}
		if from, ok := x.s.covers(p.sent, p.term); ok && alive == nil {
			return p, from, nil
		}
		age = 0
	}
	return nil, from, cmp.Or(alive, errRestless)
}

// checkInterval is the longest time between two checks of a waiter, because the member that serves its
// watch may have stopped.
const checkInterval = 2 * time.Second

// sleep waits until the entry before the attempt's own is removed, or for a while, and reports whether
// the attempt has the lock then.
func (a *attempt) sleep(ctx context.Context) (alone bool, err error) {
	client, err := a.b.connect(ctx)
	if err != nil {
		return false, err
	}
	watching, stop := context.WithTimeout(clientv3.WithRequireLeader(ctx), min(checkInterval, a.req.TTL/3))
	defer stop()
	// The answer that showed this entry may be of the transaction that removed it.
	w := <-client.Watch(watching, string(a.before.Key), clientv3.WithRev(a.at), clientv3.WithFilterPut())
	if w.Err() != nil && watching.Err() == nil { // for example because the member has no leader
		base.Pause(ctx, 100*time.Millisecond)
	}
	if w.Err() == nil && len(w.Events) > 0 && time.Since(a.from) < a.req.TTL/4 {
		if alone, ok := a.moved(ctx, w.Events[0].Kv.ModRevision); ok {
			return alone, nil
		}
	}
	// The attempt keeps its place as long as its lease may live.
	for {
		one, cancel := context.WithTimeout(ctx, a.b.opt.CallTimeout)
		alone, err = a.confirm(one)
		cancel()
		if answered(err) || errors.Is(err, errGone) || ctx.Err() != nil || a.s.ended() {
			return alone, err
		}
		base.Pause(ctx, 50*time.Millisecond)
	}
}

// moved looks at the queue after the entry before the attempt's own was removed, at a revision, and
// reports whether the attempt has the lock now. It writes nothing: the attempt's lease is known to live,
// since a.from, and entries before its own can only be removed, so what one member has stored is
// enough, if it is not older than the removal. The same transaction may have removed the attempt's own
// entry: entries share a lease, which may be revoked. ok is false if that did not tell.
func (a *attempt) moved(ctx context.Context, removed int64) (alone, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, a.b.opt.CallTimeout)
	defer cancel()
	local := clientv3.WithSerializable()
	ops := append(a.looks(a.rev, local), clientv3.OpGet(a.key, local))
	seen, _, err := call(ctx, a.b, func(ctx context.Context, c *clientv3.Client) (*clientv3.TxnResponse, error) {
		return c.Txn(ctx).Then(ops...).Commit()
	})
	if err != nil || seen.Header == nil || seen.Header.Revision < removed || !fits(ops, nil, (*etcdserverpb.TxnResponse)(seen)) {
		return false, false
	}
	if own := seen.Responses[len(ops)-1].GetResponseRange().GetKvs(); len(own) == 0 || own[0].CreateRevision != a.rev {
		return false, false
	}
	return a.look(seen.Responses, seen.Header.Revision), true
}
