package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redlock-go/redlock/driver"
)

// An attempt is one call of Acquire.
type attempt struct {
	b    *Backend
	path string
	req  driver.Request
	s    *session
	key  string // of our entry; empty: there is none
	rev  int64  // its create revision
	// doubt: the request that makes the entry may be under way.
	doubt bool
	fence uint64
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
	a := &attempt{b: b, path: b.Path(req.Key), req: *req}
	if err = a.acquire(call); err == nil {
		return newLease(a), nil
	}
	a.leave()
	if errors.Is(err, driver.ErrHeld) {
		b.noteHeld(a.path)
		return nil, err
	}
	err = call.Failed(b.explain(err))
	if a.seen != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", err, a.seen)
	}
	return nil, err
}

func (a *attempt) acquire(ctx context.Context) error {
	for again := false; ; again = true {
		err := a.try(ctx)
		switch {
		case again && !a.req.Wait:
			return err
		case errors.Is(err, rpctypes.ErrLeaseNotFound) && a.s != nil:
			a.s.retire() // the machine slept, or an operator revoked it
		case errors.Is(err, errGone) && a.req.Wait:
			// The lease ended while no server could be reached: go to the end of the queue.
		default:
			return err
		}
		a.leave()
	}
}

// noteHeld remembers that a key was found held.
func (b *Backend) noteHeld(path string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.held) >= 1000 {
		clear(b.held) // the others are tried without a look once
	}
	b.held[path] = time.Now()
}

// heldLately reports whether a key was found held within 5 s.
func (b *Backend) heldLately(path string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Since(b.held[path]) < 5*time.Second
}

// try makes one attempt, or waits. If the key was held lately it looks first, since a look writes
// nothing.
func (a *attempt) try(ctx context.Context) error {
	if a.req.Wait {
		return a.wait(ctx)
	}
	if a.b.heldLately(a.path) {
		if err := a.peek(ctx); err != nil {
			return err
		}
		if a.seen != nil {
			return a.seen
		}
	}
	alone, err := a.enter(ctx)
	switch {
	case err != nil:
		return err
	case alone:
		return nil
	case a.seen != nil:
		return a.seen
	}
	return errors.New("another entry came before ours")
}

// leave gives up the attempt's entry, and its place in the session.
func (a *attempt) leave() {
	switch {
	case a.s == nil:
	case a.key != "":
		a.b.abandon(a.s, a.key, a.doubt)
	default:
		a.s.leave()
	}
	a.s, a.key, a.doubt, a.before = nil, "", false, nil
}

// firsts returns requests for the first entry of each span that excludes this owner.
func (a *attempt) firsts() []clientv3.Op {
	var ops []clientv3.Op
	for _, s := range excluders(a.path, a.req.Mode) {
		opts := append(clientv3.WithFirstCreate(), clientv3.WithRange(s.to))
		ops = append(ops, clientv3.OpGet(s.from, opts...))
	}
	return ops
}

// queue returns requests for the last entry of each such span, before a revision if that is not zero,
// and then for the first one.
func (a *attempt) queue(before int64) []clientv3.Op {
	var ops []clientv3.Op
	for _, s := range excluders(a.path, a.req.Mode) {
		opts := append(clientv3.WithLastCreate(), clientv3.WithRange(s.to))
		if before != 0 {
			opts = append(opts, clientv3.WithMaxCreateRev(before-1))
		}
		ops = append(ops, clientv3.OpGet(s.from, opts...))
	}
	return append(ops, a.firsts()...)
}

// look notes the holder: the first entry among the answers to firsts.
func (a *attempt) look(responses []*etcdserverpb.ResponseOp) {
	a.seen = nil
	if first := pick(responses, func(x, y *mvccpb.KeyValue) bool { return x.CreateRevision < y.CreateRevision }); first != nil {
		e, _ := a.b.parse(first)
		a.seen = &driver.HeldError{Holder: e.owner}
	}
}

// lookAhead notes the last entry before our own, and the holder, from the answers to queue.
func (a *attempt) lookAhead(responses []*etcdserverpb.ResponseOp, rev int64) {
	half := len(excluders(a.path, a.req.Mode))
	a.at = rev
	a.before = pick(responses[:half], func(x, y *mvccpb.KeyValue) bool { return x.CreateRevision > y.CreateRevision })
	if a.before != nil {
		a.look(responses[half : 2*half])
	}
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

// peek reads the queue before the attempt's own entry. A member may answer from old data, so a lock never rests on
// what it says.
func (a *attempt) peek(ctx context.Context) error {
	queue := a.queue(a.rev)
	looked, _, err := call(ctx, a.b, func(ctx context.Context, c *clientv3.Client) (*clientv3.TxnResponse, error) {
		return c.Txn(ctx).Then(queue...).Commit()
	})
	switch {
	case err != nil:
		return err
	case looked.Header == nil || !fits(queue, nil, (*etcdserverpb.TxnResponse)(looked)):
		return errForm
	}
	a.lookAhead(looked.Responses, looked.Header.Revision)
	return nil
}

// enter writes the attempt's entry: at the end of the queue if it waits, else only if no entry
// excludes it. It reports whether no entry does; otherwise a.seen has the holder.
func (a *attempt) enter(ctx context.Context) (alone bool, err error) {
	if a.s, err = a.b.join(ctx, a.req.TTL); err != nil {
		return false, err
	}
	if err := a.s.keep(ctx, a.req.TTL/8); err != nil {
		return false, err
	}
	a.key = entryKey(a.path, a.req.Mode, a.s)
	for {
		p := a.entry()
		sure, err := a.b.do(ctx, p)
		a.doubt = a.doubt || !sure
		if err != nil {
			if !a.doubt {
				a.key = ""
			}
			return false, err
		}
		done := p.answer
		if done.Succeeded {
			if err := a.granted(p.rev, p.base.value); err != nil {
				return false, err
			}
			if a.req.Wait {
				a.lookAhead(done.Responses, p.rev)
			}
			return a.settle(ctx, p)
		}
		n := len(done.Responses) - 1
		if kvs := done.Responses[n].GetResponseRange().GetKvs(); len(kvs) > 0 { // an earlier try wrote it
			return a.found(ctx, kvs[0])
		}
		if a.look(done.Responses[:n]); a.seen != nil && !a.req.Wait {
			if !a.doubt {
				a.key = ""
			}
			return false, nil
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
}

// entry returns the part that makes the entry. If it succeeds and the attempt waits, its answers begin
// with those to queue. If it fails, they are those to firsts, and the entry itself.
func (a *attempt) entry() *part {
	key, owner, id := a.key, a.req.Owner, a.s.id // add may be called when the attempt is over
	p := &part{
		path: a.path,
		conditions: []clientv3.Cmp{
			clientv3.Compare(clientv3.CreateRevision(key), "=", 0),
			clientv3.Compare(clientv3.CreateRevision(a.b.tombstone(key)), "=", 0),
		},
		otherwise: append(a.firsts(), clientv3.OpGet(key)),
		add: func(base *tokenBase) clientv3.Op {
			return clientv3.OpPut(key, entryValue(base.value, owner), clientv3.WithLease(id))
		},
	}
	if a.req.Wait {
		p.then = a.queue(0)
		return p
	}
	for _, s := range excluders(a.path, a.req.Mode) {
		p.conditions = append(p.conditions, clientv3.Compare(clientv3.CreateRevision(s.from), "=", 0).WithRange(s.to))
	}
	return p
}

// granted stores the entry's revision and token.
func (a *attempt) granted(revision int64, base uint64) error {
	a.rev, a.fence = revision, base+uint64(revision)
	if a.fence > driver.MaxFence {
		return &driver.RefusedError{Reason: "the tokens of the locks under " + a.b.opt.Path + " are at their end: use another path"}
	}
	return nil
}

// found adopts the entry that an earlier try wrote, and looks for entries before it.
func (a *attempt) found(ctx context.Context, kv *mvccpb.KeyValue) (alone bool, err error) {
	base, owner, ok := parseValue(string(kv.Value))
	if !ok || owner != a.req.Owner {
		return false, errGone // another program has overwritten it
	}
	if err := a.granted(kv.CreateRevision, base); err != nil {
		return false, err
	}
	return a.confirm(ctx)
}

// settle reports whether the attempt has the lock by the answer that made its entry: no entry is
// before its own, and its lease is known to live.
func (a *attempt) settle(ctx context.Context, p *part) (alone bool, err error) {
	if a.before != nil {
		return false, nil
	}
	var ok bool
	if a.from, ok = a.s.covers(p.sent, p.term); ok {
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
	p, from, err := a.b.check(ctx, a.s, a.key, a.rev, a.req.TTL/8, a.queue(a.rev))
	if err != nil {
		return false, err
	}
	a.from = from
	a.lookAhead(p.answer.Responses, p.rev)
	return a.before == nil, nil
}

// check finds an entry by a write, which a majority confirms, and returns the time from which its
// lease lasts. It keeps the lease alive unless that was done within this time. The error is errGone if
// the entry is certainly gone.
func (b *Backend) check(ctx context.Context, s *session, key string, rev int64, age time.Duration, look []clientv3.Op) (p *part, from time.Time, err error) {
	var alive error
	for range 3 {
		alive = s.keep(ctx, age)
		there := clientv3.Compare(clientv3.CreateRevision(key), "=", rev)
		p = &part{conditions: []clientv3.Cmp{there}, then: look}
		if _, err := b.do(ctx, p); err != nil {
			return nil, from, err
		}
		if !p.answer.Succeeded {
			return nil, from, errGone
		}
		if from, ok := s.covers(p.sent, p.term); ok && alive == nil {
			return p, from, nil
		}
		age = 0
	}
	return nil, from, cmp.Or(alive, errRestless)
}

// checkInterval is the longest time between two looks of a waiter, because the member that serves its
// watch may have stopped.
const checkInterval = 2 * time.Second

// wait joins the key's queue and returns when it has the lock.
func (a *attempt) wait(ctx context.Context) error {
	one, cancel := context.WithTimeout(ctx, a.b.opt.CallTimeout)
	alone, err := a.enter(one)
	cancel()
	for err == nil && !alone {
		alone, err = a.sleep(ctx)
	}
	return err
}

// sleep waits until the entry before the attempt's own is removed, and reports whether the attempt
// has the lock then.
func (a *attempt) sleep(ctx context.Context) (alone bool, err error) {
	watching, stop := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer stop()
	client, err := a.b.connect(ctx)
	if err != nil {
		return false, err
	}
	before := string(a.before.Key)
	// The answer that showed this entry may be of the transaction that removed it.
	from := clientv3.WithRev(a.at)
	gone := make(chan error, 1)
	go func() { // Watch returns when a member has answered
		w := <-client.Watch(watching, before, from, clientv3.WithFilterPut())
		gone <- w.Err()
	}()
	look := time.NewTimer(min(checkInterval, a.req.TTL/3))
	defer look.Stop()
	for {
		select {
		case err := <-gone:
			if err == nil {
				return a.awake(ctx)
			}
			look.Reset(100 * time.Millisecond) // the watch broke, for example because the member has no leader
			if a.b.opt.Notify != nil {
				a.b.opt.Notify(driver.Notice{Kind: driver.NoticeDisconnected, Node: a.b.address, Key: a.req.Key, Err: err, Detail: "a watch broke, and is made again"})
			}
			before = "" // begin another one
		case <-look.C:
			one, cancel := context.WithTimeout(ctx, a.b.opt.CallTimeout)
			err := a.peek(one)
			cancel()
			switch {
			case ctx.Err() != nil:
				return false, ctx.Err()
			case err != nil, a.before == nil, a.s.ended():
				return a.awake(ctx)
			case string(a.before.Key) != before:
				return false, nil
			}
			look.Reset(min(checkInterval, a.req.TTL/3))
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// awake is confirm for a waiter: it repeats unknown outcomes as long as the lease may live, for the
// attempt keeps its place as long.
func (a *attempt) awake(ctx context.Context) (alone bool, err error) {
	for {
		one, cancel := context.WithTimeout(ctx, a.b.opt.CallTimeout)
		alone, err = a.confirm(one)
		cancel()
		if answered(err) || errors.Is(err, errGone) || ctx.Err() != nil || a.s.ended() {
			return alone, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}
