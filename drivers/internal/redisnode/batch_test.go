package redisnode

import (
	"cmp"
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
		c, err := r.aim(p, time.Now())
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

// A batch takes the calls that are alike, and ends with the first of them. The others go singly behind it:
// so does a release whose own request is in the batch.
func TestABatchTakesOnlyCallsThatAreAlike(t *testing.T) {
	now := time.Now()
	n := newLibrary(0, true).node(t)
	bind := func() *process {
		p := &process{bound: bound{scripts: lua.Bind("r")}}
		p.clock.observe(now.UnixMicro(), now, now)
		return p
	}
	one, other := bind(), bind()
	var calls []*Call
	sent := func(p *process, o *operation) *Call {
		o.deadline = cmp.Or(o.deadline, now.Add(time.Minute))
		c, err := o.aim(p, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		c.deadline = o.deadline
		calls = append(calls, c)
		return c
	}
	acquire := func(key string, change func(*driver.Request)) *operation {
		r := startRequest(key)
		r.FenceFloor = 1700000000000000
		if change != nil {
			change(r)
		}
		return &n.attempt(r, nil).operation
	}
	within := func(key string, d time.Duration) *operation {
		o := acquire(key, nil)
		o.deadline = now.Add(d)
		return o
	}
	release := func(key, value, place string) *operation {
		return &n.releasing(n.names.Texts(key, "", 0), value, place, false).operation
	}
	sent(one, acquire("a", nil))
	sent(one, release("a", "o/a|7", "")) // its own request is before it
	sent(one, within("b", 30*time.Second))
	sent(one, acquire("c", nil))
	sent(one, release("d", "o/d|7", ""))
	sent(other, acquire("process", nil))
	sent(one, acquire("ttl", nil)).Args[2] = "1"
	sent(one, acquire("life of the counter", nil)).Args[4] = "1"
	sent(one, acquire("no token", func(r *driver.Request) { r.FenceFloor = 0 }))
	sent(one, acquire("range", func(r *driver.Request) { r.Tokens = 9 }))
	sent(one, acquire("readers", func(r *driver.Request) { r.Mode = driver.Shared }))
	sent(one, within("soon", 15*time.Millisecond))
	sent(one, release("every value", "o/e|", ""))
	sent(one, release("place", "o/p|7", "x.1.30"))
	sent(one, acquire("d", nil)) // behind the release
	calls = append(calls, &Call{Keys: []string{"handshake"}})
	send, batches := gather(calls, time.Millisecond)
	if len(batches) != 1 || send[0] != &batches[0].Call {
		t.Fatalf("%d batches", len(batches))
	}
	name := func(calls []*Call) (names []string) {
		for _, c := range calls {
			names = append(names, c.Keys[0])
		}
		return names
	}
	if got, want := name(batches[0].calls), []string{"d", "a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("the batch has %q, want %q", got, want)
	}
	if got, want := name(send[1:]), []string{"a", "process", "ttl", "life of the counter", "no token", "range", "readers", "soon", "every value", "place", "d", "handshake"}; !slices.Equal(got, want) {
		t.Errorf("behind it go %q, want %q", got, want)
	}
	if ends := batches[0].Args[0]; ends != fmt.Sprint(now.Add(30*time.Second).UnixMicro()) {
		t.Errorf("the batch ends at %s", ends)
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
