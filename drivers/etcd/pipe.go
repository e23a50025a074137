package etcd

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Bounds of the pipe. A server has 128 as its default of max-txn-ops, which counts what is nested as
// well; if it has less, transactions are halved until they fit.
const (
	mostBatches = 2   // under way, while transactions are small
	fewParts    = 4   // of a small transaction
	mostInBatch = 100 // parts
)

// A part is one call's share of a transaction.
type part struct {
	conditions      []clientv3.Cmp
	then, otherwise []clientv3.Op
	path            string                       // of the lock to which it adds an entry; empty: it adds none
	add             func(*tokenBase) clientv3.Op // the entry, which comes after then
	more            uint64                       // how many tokens the entry has besides the last one
	least           uint64                       // the base is at least this one when the part has an effect; zero: any
	done            chan struct{}                // closed when another goroutine has sent it

	// The outcome.
	answer   *etcdserverpb.TxnResponse
	base     *tokenBase // the base with which an entry was added
	expected uint64     // the greatest base that a request to add it expected
	sent     time.Time  // before the transaction was sent
	rev      int64      // the revision of the answer
	term     uint64     // the leader's
	sure     bool       // it was sent once, and answered
	err      error
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
	added := map[string]bool{}
	q.queue = slices.DeleteFunc(q.queue, func(p *part) bool {
		if len(batch) >= mostInBatch || p.path != "" && added[p.path] {
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
		if t.old != nil {
			outcome(batch, func(p *part) { p.expected = max(p.expected, t.old.value) })
		}
		sent := time.Now()
		done, once, err := call(ctx, b, t.commit)
		sure = sure && once
		switch {
		case err != nil && definite(err) && sure && len(batch) > 1:
			half := len(batch) / 2 // they are too many, or one of them is the cause
			b.send(ctx, batch[:half])
			b.send(ctx, batch[half:])
			return
		case err != nil:
			outcome(batch, func(p *part) { p.sure, p.err = sure && definite(err), err })
			return
		case done.Header == nil || !fits(t.then, t.otherwise, (*etcdserverpb.TxnResponse)(done)), !done.Succeeded && len(t.conditions) == 0:
			outcome(batch, func(p *part) { p.sure, p.err = false, errForm })
			return
		}
		b.took.Store(int64(time.Since(sent)))
		b.saw(done.Header.Revision)
		stored := t.old
		if t.old != nil && !done.Succeeded {
			if stored, err = b.learn(&t, done); err != nil {
				outcome(batch, func(p *part) { p.sure, p.err = sure, err })
				return
			}
		}
		if answers := t.answers(done, stored); answers != nil {
			for i, p := range batch {
				p.answer, p.base, p.sent, p.sure = answers[i], t.next, sent, sure
				p.rev, p.term = done.Header.Revision, done.Header.RaftTerm
			}
			return
		}
		if err = ctx.Err(); stored.stored == t.old.stored {
			sure, err = false, errForm // all conditions are true
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
	conditions      []clientv3.Cmp
	then, otherwise []clientv3.Op
	flat            bool       // the one part is not nested
	first           int        // the index of the parts' first request in then
	old, next       *tokenBase // that it expects, and that it stores; nil: it needs none
	least           uint64     // that of the one part
}

// transaction makes the request for a batch. An entry is added only if the base of the tokens is as
// expected. What is nested is a write for etcd, so a member never answers from its own data, which may
// be old. A part that writes, and is alone, is not nested: that is faster, and etcd checks no
// permission for what is nested (GHSA-rfx7-8w68-q57q, until March 2026).
func (b *Backend) transaction(ctx context.Context, batch []*part) (t transaction, err error) {
	if slices.ContainsFunc(batch, func(p *part) bool { return p.add != nil || p.least > 0 }) {
		more, least, adds := uint64(0), uint64(0), false
		for _, p := range batch {
			more, least, adds = max(more, p.more), max(least, p.least), adds || p.add != nil
		}
		if t.old, t.next, err = b.nextBase(ctx, adds, more, least); err != nil {
			return t, err
		}
		t.conditions = []clientv3.Cmp{b.unchanged(t.old)}
		t.otherwise = []clientv3.Op{clientv3.OpGet(b.baseKey())}
		if t.next.stored != t.old.stored {
			t.then = append(t.then, clientv3.OpPut(b.baseKey(), t.next.stored))
		}
	}
	t.first = len(t.then)
	for _, p := range batch {
		then := p.then
		if p.add != nil {
			then = append(then[:len(then):len(then)], p.add(t.next))
		}
		writes := slices.ContainsFunc(then, func(op clientv3.Op) bool { return op.IsPut() || op.IsDelete() })
		switch {
		case len(batch) == 1 && writes:
			t.flat, t.least = true, p.least
			t.conditions = append(t.conditions, p.conditions...)
			t.then = append(t.then, then...)
			t.otherwise = append(p.otherwise[:len(p.otherwise):len(p.otherwise)], t.otherwise...)
		case writes && len(p.conditions) == 0 && len(then) == 1: // a deletion, whose answer nobody needs
			t.then = append(t.then, then...)
		default:
			t.then = append(t.then, clientv3.OpTxn(p.conditions, then, p.otherwise))
		}
	}
	return t, nil
}

// commit sends the transaction. One that only deletes an entry is cheaper without its form.
func (t *transaction) commit(ctx context.Context, c *clientv3.Client) (*clientv3.TxnResponse, error) {
	if len(t.conditions) > 0 || len(t.then) > 1 || !t.then[0].IsDelete() {
		return c.Txn(ctx).If(t.conditions...).Then(t.then...).Else(t.otherwise...).Commit()
	}
	r, err := c.Do(ctx, t.then[0])
	if err != nil {
		return nil, err
	}
	return &clientv3.TxnResponse{Header: r.Del().Header, Succeeded: true, Responses: []*etcdserverpb.ResponseOp{{}}}, nil
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

// answers returns those to the parts, or nil if the base that is stored is another one than expected. That
// matters to a lone part neither if its answers show an entry, nor if it only needs a base as great as this.
func (t *transaction) answers(done *clientv3.TxnResponse, stored *tokenBase) (answers []*etcdserverpb.TxnResponse) {
	all := done.Responses
	switch {
	case done.Succeeded && !t.flat:
		for _, r := range all[t.first:] {
			answers = append(answers, r.GetResponseTxn())
		}
		return answers
	case done.Succeeded:
		all = all[t.first:]
	case t.old != nil:
		all = all[:len(all)-1]
		shows := slices.ContainsFunc(all, func(r *etcdserverpb.ResponseOp) bool { return len(r.GetResponseRange().GetKvs()) > 0 })
		if !shows && (t.least == 0 || stored.value < t.least) {
			return nil
		}
	}
	return []*etcdserverpb.TxnResponse{{Succeeded: done.Succeeded, Responses: all}}
}
