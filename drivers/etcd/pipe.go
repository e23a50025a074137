package etcd

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Bounds of the pipe. A server has 128 as its default of max-txn-ops, which counts what is nested as
// well; if it has less, the pipe finds that out.
const (
	mostBatches = 2   // under way, while transactions are small
	fewParts    = 4   // of a small transaction
	mostInBatch = 100 // parts
)

// A part is one call's share of a transaction: a nested transaction, or a deletion.
type part struct {
	conditions      []clientv3.Cmp
	then, otherwise []clientv3.Op
	path            string                       // of the lock to which it adds an entry; empty: it adds none
	add             func(*tokenBase) clientv3.Op // the entry, which comes after then
	gone            string                       // the entry that it deletes, without conditions
	done            chan struct{}                // closed when another goroutine has sent it

	// The outcome.
	answer *etcdserverpb.TxnResponse // of the nested transaction
	base   *tokenBase                // the base with which an entry was added
	sent   time.Time                 // before the transaction was sent
	rev    int64                     // the revision of the answer
	term   uint64                    // the leader's
	sure   bool                      // it was sent once, and answered
	err    error
}

// A pipe gathers the parts of calls that meet. A caller sends its own part at once, on its own
// goroutine, unless two transactions are under way; what comes meanwhile goes together in the next
// one. While many callers meet only one is under way: a second one would carry a single part, and
// make the others wait for it.
type pipe struct {
	mu      sync.Mutex
	sending int // transactions under way
	size    int // the parts of the last transaction, or half as many as before
	queue   []*part
	limit   int // the most parts of a transaction; 0: mostInBatch
}

// do sends a part, and returns when it is answered or ctx ends. After an error, sure says that
// the part has no effect, now or later.
func (b *Backend) do(ctx context.Context, p *part) (sure bool, err error) {
	if err := ctx.Err(); err != nil {
		return true, err
	}
	q := &b.pipe
	q.mu.Lock()
	if len(q.queue) == 0 && (q.sending == 0 || q.sending < mostBatches && q.size <= fewParts) {
		q.sending++
		q.size /= 2
		q.mu.Unlock()
		b.send(ctx, []*part{p})
		q.mu.Lock()
		if len(q.queue) == 0 || !b.calls.Go(b.drain) {
			q.sending--
		}
		q.mu.Unlock()
		return p.sure, p.err
	}
	p.done = make(chan struct{})
	q.queue = append(q.queue, p)
	q.mu.Unlock()
	select {
	case <-p.done:
		return p.sure, p.err
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.queue, p); i >= 0 {
		q.queue = slices.Delete(q.queue, i, i+1)
		return true, ctx.Err()
	}
	return false, ctx.Err()
}

// drain sends what waits, until nothing does. It continues the transaction that its caller counted.
func (b *Backend) drain(ctx context.Context) {
	for {
		batch := b.pipe.take()
		if batch == nil {
			return
		}
		one, cancel := context.WithTimeout(ctx, b.opt.CallTimeout)
		b.send(one, batch)
		cancel()
		for _, p := range batch {
			close(p.done)
		}
	}
}

// take returns the parts of the next transaction: nil, if nothing waits. A lock has one part that adds
// an entry, because entries of one transaction have the same revision, and neither would be first.
func (q *pipe) take() (batch []*part) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.sending > 1 && q.size > fewParts {
		q.sending--
		return nil // the other transaction's goroutine goes on
	}
	most := mostInBatch
	if q.limit > 0 {
		most = q.limit
	}
	added := map[string]bool{}
	q.queue = slices.DeleteFunc(q.queue, func(p *part) bool {
		if len(batch) >= most || p.path != "" && added[p.path] {
			return false
		}
		batch, added[p.path] = append(batch, p), true
		return true
	})
	if q.size = max(len(batch), q.size/2); len(batch) == 0 {
		q.sending--
	}
	return batch
}

// shrink notes that a transaction of this many parts was too large for the server.
func (q *pipe) shrink(parts int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.limit = max(parts/2, 1)
}

// send makes one transaction of all parts, and stores their outcomes. It sends the transaction again
// if the base of the tokens is another one than expected.
func (b *Backend) send(ctx context.Context, batch []*part) {
	sure := true
	for {
		t, err := b.transaction(ctx, batch)
		if err != nil {
			outcome(batch, func(p *part) { p.sure, p.err = sure, err })
			return
		}
		sent := time.Now()
		done, once, err := call(ctx, b, func(ctx context.Context, c *clientv3.Client) (*clientv3.TxnResponse, error) {
			return t.commit(ctx, c)
		})
		sure = sure && once
		switch {
		case err != nil && definite(err) && sure && len(batch) > 1:
			if errors.Is(err, rpctypes.ErrTooManyOps) {
				b.pipe.shrink(len(batch))
			}
			half := len(batch) / 2 // one of them may be the cause
			b.send(ctx, batch[:half])
			b.send(ctx, batch[half:])
			return
		case err != nil:
			outcome(batch, func(p *part) { p.sure, p.err = sure && definite(err), err })
			return
		case done.Header == nil || !fits(t.then, t.otherwise, (*etcdserverpb.TxnResponse)(done)):
			outcome(batch, func(p *part) { p.sure, p.err = false, errForm })
			return
		}
		b.took.Store(int64(time.Since(sent)))
		b.saw(done.Header.Revision)
		if answers := t.answers(done); answers != nil {
			if !done.Succeeded {
				b.base.CompareAndSwap(t.next, t.old) // it was refused, and raised no base
			}
			for i, p := range batch {
				p.answer, p.base, p.sent, p.sure = answers[i], t.next, sent, sure
				p.rev, p.term = done.Header.Revision, done.Header.RaftTerm
			}
			return
		}
		last := done.Responses[len(done.Responses)-1].GetResponseRange()
		current, err := b.readBase(last.GetKvs(), done.Header.Revision)
		if err == nil {
			b.base.Store(current)
			err = ctx.Err()
		}
		if err != nil {
			outcome(batch, func(p *part) { p.sure, p.err = sure, err })
			return
		}
	}
}

func outcome(batch []*part, set func(*part)) {
	for _, p := range batch {
		set(p)
	}
}

// A transaction is one request of the pipe.
type transaction struct {
	batch           []*part
	conditions      []clientv3.Cmp
	then, otherwise []clientv3.Op
	old, next       *tokenBase // that it expects, and that it stores; nil: it adds no entry
}

// transaction makes the request for a batch. An entry is added only if the base of the tokens is as
// expected. What is nested, and what deletes, is a write for etcd: so a member never answers from
// its own data, which may be old. An entry that is added alone is not nested: that is faster, and
// etcd checks no permission for what is nested (GHSA-rfx7-8w68-q57q, until March 2026).
func (b *Backend) transaction(ctx context.Context, batch []*part) (t transaction, err error) {
	t.batch = batch
	if slices.ContainsFunc(batch, func(p *part) bool { return p.path != "" }) {
		if t.old, t.next, err = b.nextBase(ctx); err != nil {
			return t, err
		}
		t.conditions = []clientv3.Cmp{b.unchanged(t.old)}
		t.otherwise = []clientv3.Op{clientv3.OpGet(b.baseKey())}
		if t.next.stored != t.old.stored {
			t.then = append(t.then, clientv3.OpPut(b.baseKey(), t.next.stored))
		}
	}
	if t.flat() {
		p := batch[0]
		t.conditions = append(t.conditions, p.conditions...)
		t.then = append(append(t.then, p.then...), p.add(t.next))
		t.otherwise = append(p.otherwise[:len(p.otherwise):len(p.otherwise)], t.otherwise...)
		return t, nil
	}
	for _, p := range batch {
		op := clientv3.OpDelete(p.gone)
		switch {
		case p.path != "":
			op = clientv3.OpTxn(p.conditions, append(p.then[:len(p.then):len(p.then)], p.add(t.next)), p.otherwise)
		case p.gone == "":
			op = clientv3.OpTxn(p.conditions, p.then, p.otherwise)
		}
		t.then = append(t.then, op)
	}
	return t, nil
}

var errForm = errors.New("the server's answer has an unexpected form")

// fits reports whether the answer to a transaction has what each operation asked for.
func fits(then, otherwise []clientv3.Op, done *etcdserverpb.TxnResponse) bool {
	ops := otherwise
	if done.GetSucceeded() {
		ops = then
	}
	if done == nil || len(done.Responses) != len(ops) {
		return false
	}
	for i, op := range ops {
		if !op.IsTxn() {
			continue
		}
		if _, then, otherwise := op.Txn(); !fits(then, otherwise, done.Responses[i].GetResponseTxn()) {
			return false
		}
	}
	return true
}

// flat reports whether the one part is not nested.
func (t *transaction) flat() bool { return len(t.batch) == 1 && t.batch[0].path != "" }

func (t *transaction) commit(ctx context.Context, c *clientv3.Client) (*clientv3.TxnResponse, error) {
	if len(t.batch) == 1 && t.batch[0].gone != "" {
		done, err := c.Delete(ctx, t.batch[0].gone)
		if err != nil {
			return nil, err
		}
		return &clientv3.TxnResponse{Header: done.Header, Succeeded: true, Responses: make([]*etcdserverpb.ResponseOp, 1)}, nil
	}
	return c.Txn(ctx).If(t.conditions...).Then(t.then...).Else(t.otherwise...).Commit()
}

// answers returns those to the parts, or nil if the base was another one than expected.
func (t *transaction) answers(done *clientv3.TxnResponse) (answers []*etcdserverpb.TxnResponse) {
	switch n := len(done.Responses); {
	case t.flat() && done.Succeeded:
		return []*etcdserverpb.TxnResponse{{Succeeded: true, Responses: done.Responses[n-len(t.batch[0].then)-1:]}}
	case t.flat():
		stored := ""
		if kvs := done.Responses[n-1].GetResponseRange().GetKvs(); len(kvs) > 0 {
			stored = string(kvs[0].Value)
		}
		if stored == t.old.stored {
			return []*etcdserverpb.TxnResponse{{Responses: done.Responses[:n-1]}}
		}
	case done.Succeeded:
		for _, r := range done.Responses[n-len(t.batch):] {
			answers = append(answers, r.GetResponseTxn()) // nil for a deletion
		}
	}
	return answers
}
