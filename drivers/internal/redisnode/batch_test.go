package redisnode

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// noQuarantine are terms with which a new server votes.
var noQuarantine = quorum.Terms{N: 1, Guard: time.Hour, Excuse: 300 * time.Millisecond, Allowance: time.Hour, Grace: 850 * time.Millisecond, Drift: 1}

// A batch gives each of its calls the reply of its single script, or leaves it to that. What the scripts
// do is compared in package lua.
func TestABatchTellsEachCallItsOutcome(t *testing.T) {
	t.Parallel()
	s := server.Redis(t)
	n, _ := newGuarded(t, plain(t, s), func(c *Config) { c.Guard, c.Bootstrap = 0, false })
	if _, err := bid(n, "held"); err != nil {
		t.Fatal(err)
	}
	p := n.router.slots[0].Load()
	if _, err := n.router.load(async.Within(t.Context(), time.Minute), p, lua.Batch, nil, "held", false); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"mine", "other", "waited"} {
		do(t, s, "SET", key, "o/1|1700000000000000", "PX", "60000")
	}
	do(t, s, "ZADD", "redlock1:queue:{waited}", "1", "x.1.30")
	do(t, s, "SET", "redlock1:fence:{odd}", "odd")
	release := func(key, value string) *operation {
		return &n.releasing(n.names.Texts(key, "", 0), value, "", false).operation
	}
	acquire := func(key string) *operation {
		a := n.attempt(&driver.Request{Key: key, Owner: "o/2", TTL: time.Minute, FenceFloor: uint64(time.Now().UnixMicro())}, nil)
		a.deadline = time.Now().Add(time.Minute)
		return &a.operation
	}
	const alone = -7 // left to the single script
	var calls []*Call
	want := []int64{1, 0, alone, 1, 1, 0, alone}
	for _, r := range []*operation{release("mine", "o/1|1700000000000000"), release("other", "o/9|1700000000000000"), release("waited", "o/1|1700000000000000"), acquire("new"), acquire("new2"), acquire("held"), acquire("odd")} {
		c, err := r.aim(p)
		if err != nil || c == nil {
			t.Fatal(c, err)
		}
		c.deadline = time.Now().Add(time.Minute)
		calls = append(calls, c)
	}
	send, batches := gather(calls, time.Millisecond)
	if len(send) != 1 || len(batches) != 1 {
		t.Fatalf("%d calls are not in the batch", len(send)-1)
	}
	n.cfg.Client.Exec(t.Context(), send)
	n.router.spread(batches[0])
	var got []int64
	for _, c := range calls {
		switch {
		case c.Err != nil:
			t.Error(c.Err)
		case c.unanswered:
			got = append(got, alone)
		case c.granted():
			got = append(got, 1)
		default:
			got = append(got, c.code())
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the outcomes are %v, want %v", got, want)
	}
}

// TestACrowdIsServedByBatches: with many callers at once there are far fewer scripts than calls.
func TestACrowdIsServedByBatches(t *testing.T) {
	t.Parallel()
	for name, q := range map[string]*quorum.Info{"alone": nil, "guarded": {Terms: noQuarantine}} {
		t.Run(name, func(t *testing.T) {
			s := server.Redis(t)
			n, _ := newGuarded(t, plain(t, s), func(c *Config) { c.Guard, c.Bootstrap = 0, false })
			const callers, pairs = 64, 4
			burst := func() (scripts int) {
				do(t, s, "CONFIG", "RESETSTAT")
				var wg sync.WaitGroup
				for i := range callers {
					wg.Go(func() {
						for range pairs {
							l, err := n.Acquire(t.Context(), &driver.Request{Key: fmt.Sprint("k", i), Owner: fmt.Sprint("o/", i), TTL: time.Minute, Quorum: q})
							if err == nil {
								err = l.Release(t.Context())
							}
							if err != nil {
								t.Error(err)
							}
						}
					})
				}
				wg.Wait()
				if t.Failed() {
					t.FailNow()
				}
				_, line, _ := strings.Cut(fmt.Sprint(do(t, s, "INFO", "commandstats")), "cmdstat_evalsha:calls=")
				if _, err := fmt.Sscanf(line, "%d,", &scripts); err != nil {
					t.Fatal(err)
				}
				return scripts
			}
			for range 100 { // the first calls load the script
				if burst() < callers*pairs/2 {
					return
				}
			}
			t.Errorf("%d pairs took %d scripts: few were batched", callers*pairs, burst())
		})
	}
}
