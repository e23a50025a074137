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
	life *life
	key  string // of our entry
	rev  int64  // its create revision
	mine string // its value
	// fence is the token.
	fence uint64
	seen  *driver.HeldError // the holder that was seen last
	at    int64             // the revision at which confirm looked
}

// Acquire makes one attempt, or with req.Wait waits in the key's queue.
func (b *Backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if err := b.info.Check(b.opt.Prefix, req); err != nil {
		return nil, err
	}
	if err := b.begin(); err != nil {
		return nil, err
	}
	defer b.wg.Done()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	a := &attempt{b: b, path: b.Path(req.Key), req: *req}
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if !req.Wait {
		bounded, cancel = b.bound(ctx)
	}
	defer cancel()
	err := a.acquire(bounded)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) && a.life != nil { // the machine slept, or an operator revoked it
		b.revoke(a.life)
		a.life = nil
		b.forgetIdle()
		err = a.acquire(bounded)
	}
	if err == nil {
		return newLease(a), nil
	}
	if a.life != nil {
		if errors.Is(err, driver.ErrHeld) && ctx.Err() == nil {
			b.leave(a.life) // it carries nothing
		} else {
			b.revoke(a.life)
		}
	}
	if errors.Is(err, driver.ErrHeld) {
		b.heldAt.Store(time.Now().UnixMilli())
		return nil, err
	}
	err = b.failed(ctx, err)
	if a.seen != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", err, a.seen)
	}
	return nil, err
}

func (a *attempt) acquire(ctx context.Context) error {
	if a.req.Wait {
		return a.wait(ctx)
	}
	return a.try(ctx)
}

// try makes one attempt without waiting. It looks for a holder while it gets a lease, so that
// an attempt for a held key writes nothing. If it has an idle lease, and recent attempts found
// their keys free, it does not look first.
func (a *attempt) try(ctx context.Context) error {
	if time.Since(time.UnixMilli(a.b.heldAt.Load())) > lookAfterHeld {
		if l, fresh := a.b.takeIdle(a.req.TTL); fresh {
			a.life = l
			return a.take(ctx)
		} else if l != nil {
			a.b.leave(l)
		}
	}
	return a.lookAndTake(ctx)
}

// lookAfterHeld is how long attempts look first, after an attempt found its key held.
const lookAfterHeld = 5 * time.Second

// lookAndTake is try with a look first.
func (a *attempt) lookAndTake(ctx context.Context) error {
	life := a.b.order(ctx, a.req.TTL)
	looked, _, err := call(ctx, a.b, func(ctx context.Context, c *clientv3.Client) (*clientv3.TxnResponse, error) {
		return c.Txn(ctx).Then(append(a.firsts(), clientv3.OpGet(a.b.baseKey()))...).Commit()
	})
	if err != nil {
		a.b.spare(life)
		return err
	}
	last := len(looked.Responses) - 1
	current, err := a.b.readBase(looked.Responses[last].GetResponseRange().GetKvs(), looked.Header.Revision)
	if err != nil {
		a.b.spare(life)
		return err
	}
	a.b.base.CompareAndSwap(nil, current)
	if a.look(looked.Responses[:last]); a.seen != nil {
		a.b.spare(life)
		return a.seen
	}
	if a.life, err = a.b.await(ctx, life); err != nil {
		return err
	}
	return a.take(ctx)
}

// take makes an entry if no other entry excludes it.
func (a *attempt) take(ctx context.Context) error {
	alone, err := a.put(ctx, false)
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

// firsts returns requests for the first entry of each span that excludes this owner.
func (a *attempt) firsts() []clientv3.Op {
	var ops []clientv3.Op
	for _, s := range excluders(a.path, a.req.Mode) {
		opts := append(clientv3.WithFirstCreate(), clientv3.WithRange(s.to))
		ops = append(ops, clientv3.OpGet(s.from, opts...))
	}
	return ops
}

// lasts returns requests for the last entry of each such span, before a revision if that is not
// zero.
func (a *attempt) lasts(before int64) []clientv3.Op {
	var ops []clientv3.Op
	for _, s := range excluders(a.path, a.req.Mode) {
		opts := append(clientv3.WithLastCreate(), clientv3.WithRange(s.to))
		if before != 0 {
			opts = append(opts, clientv3.WithMaxCreateRev(before-1))
		}
		ops = append(ops, clientv3.OpGet(s.from, opts...))
	}
	return ops
}

// look notes the holder: the first entry among the answers to firsts.
func (a *attempt) look(responses []*etcdserverpb.ResponseOp) {
	a.seen = nil
	var first *mvccpb.KeyValue
	for _, r := range responses {
		if kvs := r.GetResponseRange().GetKvs(); len(kvs) > 0 && (first == nil || kvs[0].CreateRevision < first.CreateRevision) {
			first = kvs[0]
		}
	}
	if first == nil {
		return
	}
	e, _ := a.b.parse(first)
	a.seen = &driver.HeldError{Holder: e.owner}
}

// last returns the latest entry among the answers to lasts.
func last(responses []*etcdserverpb.ResponseOp) *mvccpb.KeyValue {
	var latest *mvccpb.KeyValue
	for _, r := range responses {
		if kvs := r.GetResponseRange().GetKvs(); len(kvs) > 0 && (latest == nil || kvs[0].CreateRevision > latest.CreateRevision) {
			latest = kvs[0]
		}
	}
	return latest
}

// put writes the attempt's entry: at the end of the queue if it waits, else only if no entry
// excludes it. It reports whether no entry does; otherwise a.seen has the holder.
func (a *attempt) put(ctx context.Context, queue bool) (alone bool, err error) {
	a.key = entryKey(a.path, a.req.Mode, a.life)
	var current *base // as it was answered
	for {
		old, next, err := a.b.nextBase(ctx, current)
		if err != nil {
			return false, err
		}
		start := time.Now()
		done, err := a.send(ctx, queue, old, next)
		if err != nil {
			return false, err
		}
		a.b.took.Store(int64(time.Since(start)))
		if done.Succeeded {
			a.b.saw(done.Header.Revision)
			if err := a.granted(done.Header.Revision, next.value); err != nil {
				return false, err
			}
			var before *mvccpb.KeyValue
			if queue {
				n := len(excluders(a.path, a.req.Mode))
				a.look(done.Responses[:n])
				before = last(done.Responses[n : 2*n])
			}
			return a.settle(ctx, before, done.Header.RaftTerm)
		}
		n := len(done.Responses) - 2
		if kvs := done.Responses[n].GetResponseRange().GetKvs(); len(kvs) > 0 { // an earlier try wrote it
			return a.found(ctx, kvs[0])
		}
		if current, err = a.b.readBase(done.Responses[n+1].GetResponseRange().GetKvs(), done.Header.Revision); err != nil {
			return false, err
		}
		if a.look(done.Responses[:n]); a.seen != nil && !queue {
			return false, nil
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
}

// send makes the transaction of put. If it succeeds and the attempt waits, its answers begin
// with those to firsts and, as many, to lasts: the holders are read before the entry is written.
// If it fails, they are those to firsts, the attempt's own entry, and the base.
func (a *attempt) send(ctx context.Context, queue bool, old, next *base) (*clientv3.TxnResponse, error) {
	conditions := []clientv3.Cmp{a.b.unchanged(old), clientv3.Compare(clientv3.CreateRevision(a.key), "=", 0)}
	var then []clientv3.Op
	if queue {
		then = append(a.firsts(), a.lasts(0)...)
	} else {
		for _, s := range excluders(a.path, a.req.Mode) {
			conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(s.from), "=", 0).WithRange(s.to))
		}
	}
	a.mine = entryValue(next.value, a.req.Owner)
	then = append(then, clientv3.OpPut(a.key, a.mine, clientv3.WithLease(a.life.id)))
	if next.stored != old.stored {
		then = append(then, clientv3.OpPut(a.b.baseKey(), next.stored))
	}
	otherwise := append(a.firsts(), clientv3.OpGet(a.key), clientv3.OpGet(a.b.baseKey()))
	done, sure, err := call(ctx, a.b, func(ctx context.Context, c *clientv3.Client) (*clientv3.TxnResponse, error) {
		return c.Txn(ctx).If(conditions...).Then(then...).Else(otherwise...).Commit()
	})
	a.life.tainted = a.life.tainted || !sure
	return done, err
}

// fetchBase reads the base.
func (b *Backend) fetchBase(ctx context.Context) (*base, error) {
	stored, _, err := call(ctx, b, func(ctx context.Context, c *clientv3.Client) (*clientv3.GetResponse, error) {
		return c.Get(ctx, b.baseKey())
	})
	if err != nil {
		return nil, err
	}
	found, err := b.readBase(stored.Kvs, stored.Header.Revision)
	if err == nil {
		b.base.CompareAndSwap(nil, found)
	}
	return found, err
}

// granted stores the entry's revision and token.
func (a *attempt) granted(revision int64, value uint64) error {
	a.rev, a.fence = revision, value+uint64(revision)
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
	a.mine = string(kv.Value)
	before, err := a.confirm(ctx)
	return err == nil && before == nil, err
}

// settle reports whether the attempt has the lock: no entry is before its own, and its lease is
// known to live.
func (a *attempt) settle(ctx context.Context, before *mvccpb.KeyValue, term uint64) (alone bool, err error) {
	if before != nil {
		return false, nil
	}
	if a.life.current(term) {
		return true, nil
	}
	before, err = a.confirm(ctx)
	return err == nil && before == nil, err
}

var (
	errGone     = errors.New("our entry is gone")
	errRestless = errors.New("the cluster changed its leader during each of three requests")
)

// confirm extends the lease, and returns the last entry before the attempt's own: nil if the
// attempt has the lock. The error is errGone if its own entry was removed.
func (a *attempt) confirm(ctx context.Context) (before *mvccpb.KeyValue, err error) {
	var alive error
	for range 3 {
		var done *clientv3.TxnResponse
		done, alive, err = a.b.extend(ctx, a.life, a.key, a.rev, append(a.lasts(a.rev), a.firsts()...))
		switch {
		case err != nil:
			return nil, err
		case done == nil:
			return nil, errGone
		}
		a.at = done.Header.Revision
		half := len(done.Responses) / 2
		before = last(done.Responses[:half])
		if before != nil {
			a.look(done.Responses[half : 2*half])
			return before, nil
		}
		if alive == nil && a.life.current(done.Header.RaftTerm) {
			return nil, nil
		}
	}
	return nil, cmp.Or(alive, errRestless)
}

// extend keeps a lease alive and checks its entry, in one round trip. done is nil if the entry
// is certainly gone; alive is the error of the keep-alive.
func (b *Backend) extend(ctx context.Context, l *life, key string, rev int64, look []clientv3.Op) (done *clientv3.TxnResponse, alive, err error) {
	// Without a linearizable read, one member would answer the transaction from its own data.
	look = append(look, clientv3.OpGet(key, clientv3.WithKeysOnly()))
	renewed := *l
	kept := make(chan error, 1)
	b.wg.Go(func() { kept <- b.keepAlive(ctx, &renewed) })
	sent := time.Now()
	answer, _, err := call(ctx, b, func(ctx context.Context, c *clientv3.Client) (*clientv3.TxnResponse, error) {
		sent = time.Now()
		return c.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", rev)).Then(look...).Commit()
	})
	alive = <-kept
	if err != nil {
		return nil, alive, err
	}
	b.saw(answer.Header.Revision)
	if !answer.Succeeded {
		return nil, alive, nil
	}
	if alive == nil {
		l.start, l.term = renewed.start, renewed.term
		if sent.Before(l.start) {
			l.start = sent // current needs an answer to a request sent after start
		}
	}
	return answer, alive, nil
}

// checkInterval is the longest time between two checks of a waiter, because the member that
// serves its watch may have stopped.
const checkInterval = 2 * time.Second

// wait joins the key's queue and returns when it has the lock.
func (a *attempt) wait(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(a.b.ctx, stop)()
	for {
		alone, err := a.enter(ctx)
		for err == nil && !alone {
			alone, err = a.sleep(ctx)
		}
		if !errors.Is(err, errGone) {
			return err
		}
		a.b.revoke(a.life) // the lease ended while no server could be reached: go to the end of the queue
		a.life = nil
	}
}

// enter takes a place at the end of the queue.
func (a *attempt) enter(ctx context.Context) (alone bool, err error) {
	ctx, cancel := a.b.bound(ctx)
	defer cancel()
	if a.life, err = a.b.await(ctx, a.b.order(ctx, a.req.TTL)); err != nil {
		return false, err
	}
	return a.put(ctx, true)
}

// sleep waits until the entry before the attempt's own is removed, or for a while, and checks
// whether the attempt has the lock. It repeats a failed check: the attempt keeps its place as
// long as its lease lives.
func (a *attempt) sleep(ctx context.Context) (alone bool, err error) {
	before, err := a.check(ctx)
	if err != nil || before == nil {
		return err == nil, err
	}
	watching, stop := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer stop()
	client, err := a.b.connect(ctx)
	if err != nil {
		return false, err
	}
	gone, after := make(chan error, 1), clientv3.WithRev(a.at+1)
	a.b.wg.Go(func() { // Watch returns when a member has answered
		w := <-client.Watch(watching, string(before.Key), after, clientv3.WithFilterPut())
		gone <- w.Err()
	})
	next := time.NewTimer(min(checkInterval, a.req.TTL/3))
	defer next.Stop()
	select {
	case err := <-gone:
		if err == nil {
			return false, nil
		}
		next.Reset(watchPause) // the watch broke, for example because the member has no leader
		a.b.broke(a.req.Key, err)
	case <-next.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
	select {
	case <-next.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// check is confirm for a waiter: it repeats unknown outcomes as long as the lease may live.
func (a *attempt) check(ctx context.Context) (before *mvccpb.KeyValue, err error) {
	for {
		one, cancel := a.b.bound(ctx)
		before, err = a.confirm(one)
		cancel()
		if err == nil || definite(err) || errors.Is(err, errGone) || ctx.Err() != nil {
			return before, err
		}
		if a.life.ended() {
			return nil, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
