package etcd

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redlock-go/redlock/driver/base"
)

// A token is a base plus a revision. Bases and revisions only grow, so tokens rise with the
// revision over all keys.
type tokenBase struct {
	value  uint64
	stored string // as it is stored; empty: nothing is stored yet
	after  string // the one that the transaction expects which stores it; empty: it was read
}

// unchanged is true on a server where the base is as it was read.
func (b *Backend) unchanged(old *tokenBase) clientv3.Cmp {
	if old.stored == "" {
		return clientv3.Compare(clientv3.CreateRevision(b.baseKey()), "=", 0)
	}
	return clientv3.Compare(clientv3.Value(b.baseKey()), "=", old.stored)
}

// lag is how far tokens may fall behind the clock before the base is raised. Without it every
// lock would raise the base, and locks taken at the same time would conflict.
const lag = 50 * time.Millisecond

// clockAge is how long the clock of this process carries on a server's time.
const clockAge = 30 * time.Second

// serverTime returns the servers' time, for which it asks them at times. In a backend that New has made it
// is this machine's time.
func (b *Backend) serverTime(ctx context.Context) (time.Time, error) {
	if b.hosts == nil {
		return b.now(), nil
	}
	if asked := b.asked.Load(); asked == nil || time.Since(*asked) > clockAge {
		if err := b.asking.Do(ctx, &b.calls, b.askTime); err != nil {
			return time.Time{}, err
		}
	}
	return b.hosts.Clock(), nil
}

// askTime asks the servers, one after another, for their time, over HTTP. If none answers within its part
// of the call timeout this machine's time is used.
func (b *Backend) askTime(ctx context.Context) error {
	for range b.hosts.Names {
		if b.askOnce(ctx) {
			break
		}
	}
	now := time.Now()
	b.asked.Store(&now)
	return ctx.Err()
}

func (b *Backend) askOnce(ctx context.Context) (answered bool) {
	ctx, cancel := context.WithTimeout(ctx, b.opt.CallTimeout/3/time.Duration(len(b.hosts.Names)))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.versionURL, nil)
	if err != nil {
		return false
	}
	answer, err := b.hosts.RoundTrip(req)
	return err == nil && answer.Body.Close() == nil
}

// readBase reads the base as it is stored at a revision.
func (b *Backend) readBase(kvs []*mvccpb.KeyValue, revision int64) (*tokenBase, error) {
	if len(kvs) == 0 {
		b.seen.Store(revision) // it may be another cluster, with new revisions
		return &tokenBase{}, nil
	}
	b.saw(revision)
	stored := string(kvs[0].Value)
	value, err := base.ParseBase(stored, layout, b.opt.Path)
	if err != nil {
		return nil, err
	}
	return &tokenBase{value: value, stored: stored}, nil
}

// fetchBase reads the base.
func (b *Backend) fetchBase(ctx context.Context) (*tokenBase, error) {
	stored, _, err := call(ctx, b, func(ctx context.Context, c *clientv3.Client) (*clientv3.GetResponse, error) {
		return c.Get(ctx, b.baseKey())
	})
	switch {
	case err != nil:
		return nil, err
	case stored.Header == nil:
		return nil, errForm
	}
	found, err := b.readBase(stored.Kvs, stored.Header.Revision)
	if err == nil {
		b.base.CompareAndSwap(nil, found)
	}
	return found, err
}

// saw notes a revision that a server answered with.
func (b *Backend) saw(revision int64) {
	for old := b.seen.Load(); revision > old && !b.seen.CompareAndSwap(old, revision); old = b.seen.Load() {
	}
}

// learn reads the base from the answer to a transaction that failed, and returns it. Later transactions
// expect it, unless another one follows it already.
func (b *Backend) learn(t *transaction, done *clientv3.TxnResponse) (*tokenBase, error) {
	read, err := b.readBase(done.Responses[len(done.Responses)-1].GetResponseRange().GetKvs(), done.Header.Revision)
	if now := b.base.Load(); err == nil && (now == t.old || now == t.next || now.after != read.stored) {
		b.base.CompareAndSwap(now, read)
	}
	return read, err
}

// nextBase returns the base that the servers most likely have, and the one to store with the
// next transaction: the same one, unless it adds an entry and tokens lag behind the clock, or the entry has
// more tokens, which are those before the last one, or it must be a greater one. The backend's other
// transaction then expects the new base at once, because the server most likely sees it later.
func (b *Backend) nextBase(ctx context.Context, adds bool, more, least uint64) (old, next *tokenBase, err error) {
	if old = b.base.Load(); old == nil {
		if old, err = b.fetchBase(ctx); err != nil {
			return nil, nil, err
		}
	}
	value := old.value
	if adds {
		value, err = b.raised(ctx, old)
	}
	value = max(value, old.value+more, least)
	if err != nil || value == old.value && old.stored != "" {
		return old, old, err
	}
	next = &tokenBase{value, layout + " " + strconv.FormatUint(value, 10), old.stored}
	b.base.Store(next)
	return old, next, nil
}

// raised returns a base with which the token of the next revision is not behind the clock. If it
// is behind by at most lag, raised returns the base as it is. Attempts of other clients that are
// under way when the base is raised fail once, so the slower the servers answer, the further
// raised goes ahead of the clock: else nearly all attempts would fail if an answer took as long
// as lag.
func (b *Backend) raised(ctx context.Context, old *tokenBase) (uint64, error) {
	now, err := b.serverTime(ctx)
	if err != nil {
		return 0, err
	}
	ahead := min(8*time.Duration(b.took.Load()), time.Second)
	return base.NextBase(old.value, uint64(max(b.seen.Load(), 0)), old.stored != "", now, lag, ahead)
}
