package zookeeper_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// TestLeasesThroughTheLossOfTheLeader: no lease of many outlives its end. A holder that is cut off
// when the leader dies learns of each loss before the key is another's; a holder that is not loses
// none.
func TestLeasesThroughTheLossOfTheLeader(t *testing.T) {
	server.Deep(t) // TestTheLeaderFails is its quick part
	t.Parallel()
	const locks, ttl = 1000, 5 * time.Second
	g := server.ZooKeeper(t, 3)
	var ways []*fault.Proxy
	url := "zk://"
	for i, addr := range g.Addrs() {
		ways = append(ways, fault.NewProxy(t, addr))
		url += strings.Repeat(",", min(i, 1)) + ways[i].Addr()
	}
	hold := func(url, key string) (held []*dlock.Lease) {
		client, err := dlock.OpenURL(url)
		must(t, err)
		t.Cleanup(func() { _ = client.Close() })
		held = make([]*dlock.Lease, locks)
		var wg sync.WaitGroup
		for i := range held {
			wg.Go(func() {
				l, err := client.Lock(t.Context(), fmt.Sprint(key, i), dlock.WithTTL(ttl))
				if err != nil {
					t.Error(err)
					return
				}
				held[i] = l
			})
		}
		if wg.Wait(); t.Failed() {
			t.FailNow()
		}
		return held
	}
	kept, lost := hold(urlOf(g), "kept/"), hold(url+"?call_timeout=1500ms", "lost/")
	others := open(t, urlOf(g))
	failing := leader(t, g)
	for _, w := range ways {
		w.Pause()
	}
	must(t, failing.Kill())
	var wg sync.WaitGroup
	for i, l := range lost {
		wg.Go(func() {
			r := drivertest.NewRequest(fmt.Sprint("lost/", i), time.Minute)
			r.Wait = true
			next := drivertest.Grant(t, others, r)
			select {
			case <-l.Done():
			default:
				t.Errorf("%s is another's, and its holder does not know it", l.Key())
			}
			drivertest.Release(t, next)
		})
	}
	wg.Wait()
	for _, l := range kept {
		if l.Err() != nil {
			t.Errorf("%s: %v", l.Key(), l.Err())
		}
	}
	must(t, failing.Start())
}
