package etcd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// How many entries of a queue Lookup reads, and for how many holders it asks for the remaining time.
const (
	mostEntries = 1000
	mostTimes   = 8
)

// inspect is a call around f.
func (b *Backend) inspect(ctx context.Context, most time.Duration, f func(call *base.Call) error) error {
	return b.calls.Do(ctx, most, func(call *base.Call) error { return b.explain(f(call)) })
}

// Lookup returns the holders of key, and the number of its waiters.
func (b *Backend) Lookup(ctx context.Context, key string) (s *driver.State, err error) {
	err = b.inspect(ctx, b.opt.CallTimeout, func(call *base.Call) error {
		entries, total, err := b.entries(call, queueSpan(b.Path(key)), mostEntries)
		if err != nil {
			return err
		}
		s = state(key, entries)
		s.Waiters = total - len(s.Holders)
		for i := range s.Holders[:min(mostTimes, len(s.Holders))] {
			s.Holders[i].TTL = max(b.timeToLive(call, entries[i].lease), 0)
		}
		return nil
	})
	return s, err
}

// timeToLive returns the remaining time of an etcd lease; zero: unknown; negative: it has ended.
func (b *Backend) timeToLive(ctx context.Context, id clientv3.LeaseID) time.Duration {
	left, _, err := call(ctx, b, func(ctx context.Context, c *clientv3.Client) (*clientv3.LeaseTimeToLiveResponse, error) {
		return c.TimeToLive(ctx, id)
	})
	if err != nil {
		return 0
	}
	return time.Duration(left.TTL) * time.Second
}

// entries returns those in a span, in the order in which they were made, and how many there are.
func (b *Backend) entries(ctx context.Context, in span, most int64) (entries []entry, total int, err error) {
	got, _, err := call(ctx, b, func(ctx context.Context, c *clientv3.Client) (*clientv3.GetResponse, error) {
		return c.Get(ctx, in.from, clientv3.WithRange(in.to), clientv3.WithLimit(most),
			clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	})
	if err != nil {
		return nil, 0, err
	}
	for _, kv := range got.Kvs {
		if e, ok := b.parse(kv); ok {
			entries = append(entries, e)
		}
	}
	return entries, int(got.Count), nil
}

// state makes a state from the queue of one lock: an entry holds the lock if no earlier entry
// excludes it.
func state(key string, entries []entry) *driver.State {
	queue := make([]base.Entry, len(entries))
	for i, e := range entries {
		queue[i] = e.Entry
	}
	return base.QueueState(key, 0, queue)
}

// List yields the held keys, without remaining times.
func (b *Backend) List(ctx context.Context, prefix string, yield func(*driver.State) bool) error {
	from := b.Path(prefix)
	locks := map[string][]entry{}                                             // by their paths
	err := b.inspect(ctx, 10*b.opt.CallTimeout, func(call *base.Call) error { // there may be many
		entries, _, err := b.entries(call, span{from, clientv3.GetPrefixRangeEnd(from)}, 0)
		for _, e := range entries {
			if strings.HasPrefix(e.path, from) { // otherwise only the entry's name has the prefix
				locks[e.path] = append(locks[e.path], e)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	for path, entries := range locks {
		key := unescaper.Replace(strings.TrimPrefix(path, b.opt.Path))
		if !yield(state(strings.TrimPrefix(key, b.opt.Prefix), entries)) {
			return nil
		}
	}
	return nil
}

// Break deletes the entry of the holder with this token. Its owner learns of it at the next
// renewal.
func (b *Backend) Break(ctx context.Context, key string, h driver.Holder) error {
	return b.inspect(ctx, b.opt.CallTimeout, func(call *base.Call) error {
		e, err := b.holder(call, key, h.Fence)
		if err != nil {
			return err
		}
		p := &part{conditions: []clientv3.Cmp{e.exists()}, then: []clientv3.Op{clientv3.OpDelete(e.key)}}
		sure, err := b.do(call, p)
		if err == nil && sure && !p.answer.Succeeded { // otherwise an earlier try may have done it
			return driver.ErrLost
		}
		return err
	})
}

// IsOwner returns a comparison that is true as long as the holder of key with this token has
// it: a condition for the caller's own transactions in the same cluster. Such a transaction
// writes under the lock or not at all, even if it arrives late. The error is driver.ErrLost if
// there is no such holder.
func (b *Backend) IsOwner(ctx context.Context, key string, fence uint64) (owner clientv3.Cmp, err error) {
	err = b.inspect(ctx, b.opt.CallTimeout, func(call *base.Call) error {
		e, err := b.holder(call, key, fence)
		if err == nil {
			owner = e.exists()
		}
		return err
	})
	return owner, err
}

// exists is true on a server as long as the entry exists.
func (e *entry) exists() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(e.key), "=", e.rev)
}

// holder returns the entry of the holder with this token; driver.ErrLost: there is none.
func (b *Backend) holder(ctx context.Context, key string, fence uint64) (*entry, error) {
	entries, _, err := b.entries(ctx, queueSpan(b.Path(key)), mostEntries)
	if err != nil {
		return nil, err
	}
	for i, h := range state(key, entries).Holders {
		if h.Fence == fence {
			return &entries[i], nil
		}
	}
	return nil, driver.ErrLost
}

// Check asks every member that the client knows for its status, and the cluster for its list of
// members.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	var c *clientv3.Client
	found := &base.Findings{}
	if err := b.inspect(ctx, b.opt.CallTimeout, func(call *base.Call) (err error) {
		if c, err = b.connect(call); err == nil {
			_, err = b.fetchBase(call)
		}
		if err == nil {
			checkCluster(call, c, found)
		}
		return err
	}); err != nil {
		return nil, err
	}
	for _, found.Node = range c.Endpoints() {
		b.checkMember(ctx, c, found)
	}
	return found.Result(nil)
}

func (b *Backend) checkMember(ctx context.Context, c *clientv3.Client, found *base.Findings) {
	ctx, cancel := context.WithTimeout(ctx, b.opt.CallTimeout)
	defer cancel()
	s, err := c.Status(ctx, found.Node)
	if err != nil {
		found.Add("member-unreachable", driver.SeverityWarning, "start the member, or remove it from the URL", "the member does not answer: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	if endsRenewedLeases(s.Version) {
		found.Add("version-old", driver.SeverityUnsafe, "upgrade to 3.4.31, 3.5.13, 3.6.0 or newer", "in this version a leader that was stopped and replaced may end leases that its successor has renewed").Measured = s.Version
	}
	if s.Leader == 0 {
		found.Add("no-leader", driver.SeverityWarning, "check that a majority of the members runs, and that they can reach each other", "the member knows no leader")
	}
	for _, e := range s.Errors {
		checkAlarm(e, found)
	}
}

// checkAlarm adds a finding for an alarm among the errors that a member reports.
func checkAlarm(text string, found *base.Findings) {
	switch {
	case strings.Contains(text, "alarm:NOSPACE"):
		found.Add("alarm", driver.SeverityWarning, "compact and defragment the database or raise its quota, then disarm the alarm", "the database is larger than its quota, and the member accepts no writes").
			Command = "etcdctl --endpoints " + found.Node + " defrag && etcdctl --endpoints " + found.Node + " alarm disarm"
	case strings.Contains(text, "alarm:CORRUPT"):
		found.Add("alarm", driver.SeverityUnsafe, "replace the members whose data differ, which the logs of etcd name; disarm the alarm only then", "the members' data differ, and the cluster accepts no requests")
	}
}

// endsRenewedLeases reports whether a release has the fault of etcd's issue 15247.
func endsRenewedLeases(version string) bool {
	var minor, patch int
	n, _ := fmt.Sscanf(version, "3.%d.%d", &minor, &patch)
	return n == 2 && (minor < 4 || minor == 4 && patch < 31 || minor == 5 && patch < 13)
}

func checkCluster(ctx context.Context, c *clientv3.Client, found *base.Findings) {
	list, err := c.MemberList(ctx)
	if err != nil {
		return // the user may not read it
	}
	voters := slices.DeleteFunc(list.Members, func(m *etcdserverpb.Member) bool { return m.IsLearner })
	found.Members(len(voters), len(c.Endpoints()))
}
