package etcd

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redlock-go/redlock/driver/base"
)

// SetClock makes b's own clock wrong.
func (b *Backend) SetClock(ahead time.Duration) {
	b.now = func() time.Time { return time.Now().Add(ahead) }
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
