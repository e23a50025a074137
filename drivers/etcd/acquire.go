package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redlock-go/redlock/driver"
)

// An attempt is one Acquire.
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
	seen  *driver.HeldError // the last holder that was seen
	at    int64             // the revision at which confirm looked
}

// Acquire makes one attempt, or takes a place in the line of waiters.
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
	var err error
	if req.Wait {
		err = a.wait(ctx)
	} else {
		err = a.try(ctx)
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
	err = b.failed(ctx, "acquire", err)
	if a.seen != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", err, a.seen)
	}
	return nil, err
}

// try makes one attempt, without a place in the line. It looks for a holder while it gets a
// lease, so that an attempt at a held key is no write. With a lease at hand, and if keys were free
// lately, it does not look first.
func (a *attempt) try(ctx context.Context) error {
	ctx, cancel := a.b.bound(ctx)
	defer cancel()
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

// lookAfterHeld is for how long attempts look first after one found its key held.
const lookAfterHeld = 5 * time.Second

// lookAndTake is try with a look.
func (a *attempt) lookAndTake(ctx context.Context) error {
	type result struct {
		life *life
		err  error
	}
	lives := make(chan result, 1)
	a.b.wg.Go(func() {
		ctx, cancel := a.b.bound(context.WithoutCancel(ctx)) // a lease whose answer is lost stays for its whole time
		defer cancel()
		l, err := a.b.newLife(ctx, a.req.TTL)
		lives <- result{l, err}
	})
	spare := func() {
		a.b.wg.Go(func() {
			if got := <-lives; got.err == nil {
				a.b.leave(got.life)
			}
		})
	}
	looked, _, err := call(ctx, a.b, func(ctx context.Context, c *clientv3.Client) (*clientv3.TxnResponse, error) {
		return c.Txn(ctx).Then(append(a.firsts(), clientv3.OpGet(a.b.baseKey()))...).Commit()
	})
	if err != nil {
		spare()
		return err
	}
	last := len(looked.Responses) - 1
	current, err := a.b.readBase(looked.Responses[last].GetResponseRange().GetKvs(), looked.Header.Revision)
	if err != nil {
		spare()
		return err
	}
	a.b.base.Store(current)
	if a.look(looked.Responses[:last]); a.seen != nil {
		spare()
		return a.seen
	}
	select {
	case got := <-lives:
		if got.err != nil {
			return got.err
		}
		a.life = got.life
	case <-ctx.Done():
		spare()
		return ctx.Err()
	}
	return a.take(ctx)
}

// take makes an entry where nobody keeps us out.
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

// firsts ask for the first entry of each span that keeps this owner out.
func (a *attempt) firsts() []clientv3.Op {
	var ops []clientv3.Op
	for _, s := range excluders(a.path, a.req.Mode) {
		opts := append(clientv3.WithFirstCreate(), clientv3.WithRange(s.to))
		ops = append(ops, clientv3.OpGet(s.from, opts...))
	}
	return ops
}

// lasts ask for the last entry of each such span, before a revision if that is not zero.
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
	e, _ := parse(first)
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

// put writes our entry: in line if it queues, else only where nobody keeps us out. It
// reports whether nobody does; otherwise a.seen has the holder.
func (a *attempt) put(ctx context.Context, queue bool) (alone bool, err error) {
	a.key = entryKey(a.path, a.req.Mode, a.life.id)
	spans := excluders(a.path, a.req.Mode)
	for {
		old := a.b.base.Load()
		if old == nil {
			if old, err = a.b.fetchBase(ctx); err != nil {
				return false, err
			}
		}
		value, err := a.b.raised(ctx, old)
		if err != nil {
			return false, err
		}
		conditions := []clientv3.Cmp{a.b.unchanged(old), clientv3.Compare(clientv3.CreateRevision(a.key), "=", 0)}
		if !queue {
			for _, s := range spans {
				conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(s.from), "=", 0).WithRange(s.to))
			}
		}
		a.mine = entryValue(value, a.req.Owner)
		// The holders are read before our entry is there. Each list is as long as spans.
		then := append(a.firsts(), a.lasts(0)...)
		then = append(then, clientv3.OpPut(a.key, a.mine, clientv3.WithLease(a.life.id)))
		stored := fmt.Sprintf("%s %d", layout, value)
		if stored != old.stored {
			then = append(then, clientv3.OpPut(a.b.baseKey(), stored))
		}
		otherwise := append(a.firsts(), clientv3.OpGet(a.key), clientv3.OpGet(a.b.baseKey()))
		done, sure, err := call(ctx, a.b, func(ctx context.Context, c *clientv3.Client) (*clientv3.TxnResponse, error) {
			return c.Txn(ctx).If(conditions...).Then(then...).Else(otherwise...).Commit()
		})
		a.life.tainted = a.life.tainted || !sure
		if err != nil {
			return false, err
		}
		n := len(spans)
		if done.Succeeded {
			a.b.saw(done.Header.Revision)
			a.b.base.Store(&base{value, stored})
			a.granted(done.Header.Revision, value)
			a.look(done.Responses[:n])
			return a.settle(ctx, last(done.Responses[n:2*n]), done.Header.RaftTerm)
		}
		if kvs := done.Responses[n].GetResponseRange().GetKvs(); len(kvs) > 0 { // an earlier try wrote it
			a.b.base.Store(nil)
			return a.found(ctx, kvs[0])
		}
		current, err := a.b.readBase(done.Responses[n+1].GetResponseRange().GetKvs(), done.Header.Revision)
		if err != nil {
			return false, err
		}
		a.b.base.Store(current)
		if a.look(done.Responses[:n]); a.seen != nil && !queue {
			return false, nil
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
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
		b.base.Store(found)
	}
	return found, err
}

// granted notes our entry's place and the token that goes with it.
func (a *attempt) granted(revision int64, value uint64) {
	a.rev, a.fence = revision, value+uint64(revision)
}

// found adopts the entry that an earlier try wrote, and looks for entries before it.
func (a *attempt) found(ctx context.Context, kv *mvccpb.KeyValue) (alone bool, err error) {
	e, _ := parse(kv)
	a.rev, a.fence, a.mine = e.rev, e.fence, string(kv.Value)
	before, err := a.confirm(ctx)
	return err == nil && before == nil, err
}

// settle returns whether we are alone: nobody is before us, and our lease is known to live.
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

// confirm extends the lease, and returns the last entry before ours: nil if we have the lock.
// The error is errGone if our entry is not there any more.
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

// extend keeps a lease alive, and looks at the same time whether the entry is there, in one
// round trip. done is nil if the entry is gone, for certain; alive is why the lease was not
// extended.
func (b *Backend) extend(ctx context.Context, l *life, key string, rev int64, look []clientv3.Op) (done *clientv3.TxnResponse, alive, err error) {
	// Without a read that asks for a majority, one member answers a transaction from its memory.
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
			l.start = sent // current compares with an answer to what was sent after start
		}
	}
	return answer, alive, nil
}

// checkInterval is how often one who waits looks by itself, at most: the member that it
// watches at may have stopped.
const checkInterval = 2 * time.Second

// wait takes a place in the line and returns when it is ours.
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
		a.b.revoke(a.life) // the lease ended while no server could be reached: to the end of the line
		a.life = nil
	}
}

// enter takes a place at the end of the line.
func (a *attempt) enter(ctx context.Context) (alone bool, err error) {
	ctx, cancel := a.b.bound(ctx)
	defer cancel()
	if a.life, err = a.b.newLife(ctx, a.req.TTL); err != nil {
		return false, err
	}
	return a.put(ctx, true)
}

// sleep waits until the entry before ours is gone, or for a while, and looks whether it is
// our turn. A look that fails is tried again: the place is kept as long as the lease lives.
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
	gone := client.Watch(watching, string(before.Key), clientv3.WithRev(a.at+1), clientv3.WithFilterPut())
	next := time.NewTimer(min(checkInterval, a.req.TTL/3))
	defer next.Stop()
	select {
	case w := <-gone:
		if w.Err() == nil {
			return false, nil
		}
		next.Reset(watchPause) // it broke: the member has no leader, say
		a.b.broke(a.req.Key, w.Err())
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

// check is confirm for a waiter: as long as the lease may live, unknown outcomes are
// tried again.
func (a *attempt) check(ctx context.Context) (before *mvccpb.KeyValue, err error) {
	for {
		one, cancel := a.b.bound(ctx)
		before, err = a.confirm(one)
		cancel()
		if err == nil || definite(err) || errors.Is(err, errGone) || ctx.Err() != nil {
			return before, err
		}
		if time.Since(a.life.start) > time.Duration(a.life.seconds)*time.Second {
			return nil, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
