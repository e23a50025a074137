package etcd

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// SetClock makes b's own clock wrong.
func (b *Backend) SetClock(ahead time.Duration) {
	b.now = func() time.Time { return time.Now().Add(ahead) }
}

// StopClock lets b's own clock stand still.
func (b *Backend) StopClock() {
	at := time.Now()
	b.now = func() time.Time { return at }
}

// Observed returns the highest revision that b has seen, and how long its last transaction took.
func (b *Backend) Observed() (revision int64, took time.Duration) {
	return b.seen.Load(), time.Duration(b.took.Load())
}

// DeleteAtOnce deletes keys by one transaction that has no condition.
func DeleteAtOnce(ctx context.Context, c *clientv3.Client, keys ...string) error {
	t := &transaction{}
	for _, key := range keys {
		t.then = append(t.then, clientv3.OpDelete(key))
	}
	_, err := t.commit(ctx, c)
	return err
}

// Lease returns the etcd lease that b's next locks of a minute use.
func (b *Backend) Lease() clientv3.LeaseID {
	s := b.join(time.Minute)
	defer s.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// AwaitQueue waits until so many requests wait for those under way.
func (b *Backend) AwaitQueue(n int) {
	for {
		b.pipe.mu.Lock()
		waiting := len(b.pipe.queue)
		b.pipe.mu.Unlock()
		if waiting == n {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// TestWhenALeaseCounts: from the last keep-alive, if the leader that answered it has answered a request that
// was sent later, or from that request.
func TestWhenALeaseCounts(t *testing.T) {
	kept := time.Now()
	for _, x := range []struct {
		term       uint64 // of the last keep-alive
		sent, want time.Duration
		ok         bool
	}{{0, -1, 0, true}, {0, 1, 0, true}, {7, 1, 0, true}, {7, -1, -1, true}, {6, 1, 0, false}, {6, -1, -1, false}} {
		from, ok := (&session{start: kept, term: x.term}).covers(kept.Add(x.sent), 7)
		if ok != x.ok || !from.Equal(kept.Add(x.want)) {
			t.Errorf("%+v: it counts from %v, %v", x, from.Sub(kept), ok)
		}
	}
}

// TestATransactionHasOneEntryOfALock: two would have one revision, and neither would be the first.
func TestATransactionHasOneEntryOfALock(t *testing.T) {
	q := &pipe{sending: 1}
	for i := range 2 * mostInBatch {
		q.queue = append(q.queue, &part{path: fmt.Sprint("lock ", i/2)}, &part{}) // one of each two parts adds no entry
	}
	for sent := 0; sent < 4*mostInBatch; {
		before := q.size
		batch, locks := q.take(), map[string]bool{}
		for _, p := range batch {
			if locks[p.path] && p.path != "" {
				t.Fatalf("two entries of %s in one transaction", p.path)
			}
			locks[p.path] = true
		}
		if sent += len(batch); len(batch) == 0 || len(batch) > mostInBatch || q.size != max(len(batch), before/2) || q.sending != 1 {
			t.Fatalf("%d parts in a transaction, and the pipe is %+v", len(batch), q)
		}
	}
	if before := q.size; q.take() != nil || q.sending != 0 || q.size != before/2 {
		t.Errorf("without parts the pipe is %+v", q)
	}
}

func TestWhatAnEntryIs(t *testing.T) {
	b := &Backend{opt: Options{Path: "/dlock/"}}
	const rev = 7
	for key, want := range map[string]bool{"/dlock/.dlock": false, "/dlock//write/1": false, "/other/k/write/1": false, "/dlock/k/write/1": true} {
		if e, ok := b.parse(&mvccpb.KeyValue{Key: []byte(key)}); ok != want || ok && e.path != "/dlock/k" {
			t.Errorf("%s is an entry: %v, of %s", key, ok, e.path)
		}
	}
	for value, want := range map[string]driver.Holder{
		fmt.Sprintf("dlock1|%d|a", uint64(driver.MaxFence-rev)):   {Owner: "a", Fence: driver.MaxFence},
		fmt.Sprintf("dlock1|%d|a", uint64(driver.MaxFence-rev+1)): {Owner: fmt.Sprintf("dlock1|%d|a", uint64(driver.MaxFence-rev+1)), Fence: rev},
		"": {Owner: "lease 1f", Fence: rev},
	} {
		e, _ := b.parse(&mvccpb.KeyValue{Key: []byte("/dlock/k/write/1"), Value: []byte(value), CreateRevision: rev, Lease: 31})
		if e.Owner != want.Owner || e.Fence != want.Fence {
			t.Errorf("%q is %+v", value, e.Holder)
		}
	}
}

// TestOfTheFirstEntriesOfTwoSpansOneIsFirst: a reader waits for writers, whose names come after those of readers,
// and for mutexes of etcd's client, whose names come before.
func TestOfTheFirstEntriesOfTwoSpansOneIsFirst(t *testing.T) {
	answer := func(revisions ...int64) *etcdserverpb.ResponseOp {
		r := &etcdserverpb.RangeResponse{}
		for _, rev := range revisions {
			r.Kvs = append(r.Kvs, &mvccpb.KeyValue{CreateRevision: rev})
		}
		return &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponseRange{ResponseRange: r}}
	}
	for _, all := range [][]*etcdserverpb.ResponseOp{{answer(5), answer(3)}, {answer(3), answer(5)}, {answer(), answer(3)}, {answer(3), answer()}} {
		if got := pick(all, func(x, y *mvccpb.KeyValue) bool { return x.CreateRevision < y.CreateRevision }); got == nil || got.CreateRevision != 3 {
			t.Errorf("of %v the first is %v", all, got)
		}
	}
}

// TestAPlaceLeavesItsSessionOnce: it may be told to do so for each try to release it.
func TestAPlaceLeavesItsSessionOnce(t *testing.T) {
	b := &Backend{}
	p, other := place{b: b, s: b.join(time.Minute)}, place{b: b, s: b.join(time.Minute)}
	p.s.retire()
	p.leave()
	if p.leave(); b.sessions.Unused(other.s) {
		t.Error("a session with a user is unused")
	}
	if other.leave(); !b.sessions.Unused(other.s) {
		t.Error("a session without users is used")
	}
}

func TestWhichRevisionsCount(t *testing.T) {
	b := &Backend{}
	stored := []*mvccpb.KeyValue{{Value: []byte("dlock1 1")}}
	for _, x := range []struct {
		stored         []*mvccpb.KeyValue
		revision, want int64
	}{{stored, 5, 5}, {stored, 3, 5}, {stored, 6, 6}, {nil, 2, 2}} { // without a base it is another cluster
		if _, err := b.readBase(x.stored, x.revision); err != nil || b.seen.Load() != x.want {
			t.Errorf("after %+v the revision is %d: %v", x, b.seen.Load(), err)
		}
	}
}

// TestAnAlarmHasItsOwnRemedy: an alarm that the members' data differ must not be disarmed before that is mended.
func TestAnAlarmHasItsOwnRemedy(t *testing.T) {
	for text, want := range map[string]string{ // as etcd 3.4 to 3.6 report them
		"memberID:4334704629544157558 alarm:NOSPACE ": "etcdctl --endpoints http://a:2379 defrag && etcdctl --endpoints http://a:2379 alarm disarm",
		"memberID:4334704629544157558 alarm:CORRUPT ": "",
		"etcdserver: no leader":                       "none",
	} {
		found := &base.Findings{Node: "http://a:2379"}
		checkAlarm(text, found)
		all, err := found.Result(nil)
		if len(all) != 1 && want != "none" || len(all) == 1 && (all[0].Command != want || all[0].Remedy == "") || err != nil {
			t.Errorf("%s: %+v, %v", text, all, err)
		}
	}
}

func TestVersionsThatEndRenewedLeases(t *testing.T) {
	for version, want := range map[string]bool{
		"3.3.25": true, "3.4.19": true, "3.4.31": false, "3.5.0": true, "3.5.13": false, "3.6.0-rc.1": false, "3.7.0": false, "4.0.0": false, "x": false,
	} {
		if endsRenewedLeases(version) != want {
			t.Errorf("version %s has the fault: %v", version, !want)
		}
	}
}
