package redisnode

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"

	"github.com/redis/go-redis/v9"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A twin is one of two servers that get the same operations: one in batches, the other with
// single scripts.
type twin struct {
	srv   *server.Server
	admin *redis.Client
	node  *Node
	proc  *process
	guard *guarded
}

const twinUser = "twin"

// twinTerms have no quarantine: a new server votes.
var twinTerms = quorum.Terms{N: 1, Guard: time.Hour, Excuse: 300 * time.Millisecond, Allowance: time.Hour, Grace: 850 * time.Millisecond, Drift: 1}

func newTwin(t *testing.T, kind server.Kind, q *quorum.Info) *twin {
	s := server.StartFor(t, kind)
	admin := dialServer(t, s)
	if err := admin.Do(t.Context(), "ACL", "SETUSER", twinUser, "on", "nopass", "~*", "&*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: twinUser, Password: "x", Protocol: 2, DisableIdentity: true, MaxRetries: -1})
	t.Cleanup(func() { _ = c.Close() })
	n, err := New(Config{
		Client: &wire{before: func([]*Call) *redis.Client { return c }, admin: func() *redis.Client { return admin }},
		Name:   "redis", Addr: "server", Prefix: "app:", CallTimeout: 30 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	w := &twin{srv: s, admin: admin, node: n}
	l, err := n.Acquire(t.Context(), &driver.Request{Key: "warm", Owner: "o/1", TTL: time.Minute, Quorum: q})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.proc = n.router.slots[0].Load()
	keys := []string{"app:warm"}
	if q != nil {
		w.guard = w.proc.serve(q)
		keys = append(keys, n.guard.meta)
	}
	load := func(q *quorum.Info, keys []string) {
		if _, err := n.router.load(async.Within(t.Context(), 30*time.Second), w.proc, lua.Batch, q, keys, false); err != nil {
			t.Fatal(err)
		}
	}
	load(nil, keys[:1])
	load(q, keys)
	return w
}

// A twinOp is one acquire or release, the same for both.
type twinOp struct {
	release  bool
	key      string
	value    string // for a release
	owner    string
	proposal int64
	late     bool // its not-after is over
}

// call makes the call of an operation, like a node.
func (w *twin) call(t *testing.T, op twinOp, q *quorum.Info) *Call {
	t.Helper()
	n := w.node
	var r *request
	if op.release {
		r = &n.releasing(op.key, op.value, "", names.Siblings{WaitQueue: n.names.WaitQueue(op.key)}).ask
	} else {
		a := n.attempt(&driver.Request{Key: op.key, Owner: op.owner, TTL: 10 * time.Minute, FenceFloor: uint64(op.proposal), Quorum: q})
		a.deadline = time.Now().Add(20 * time.Second)
		if op.late {
			a.deadline = time.Now().Add(-time.Hour)
		}
		r = &a.ask
	}
	s, err := n.router.aim(w.proc, r)
	if err != nil || s == nil {
		t.Fatalf("no call: %v", err)
	}
	s.deadline = time.Now().Add(20 * time.Second)
	return &s.Call
}

// send sends calls like a pipeline: first a batch and the calls that it does not take, then the
// calls that the batch has left alone. It returns the order in which they took effect, and how
// many of them the batch handled.
func (w *twin) send(calls []*Call) (order []int, did int) {
	f, ctx := w.node.router, context.Background()
	b, out := f.gatherOne(calls, time.Millisecond)
	w.node.cfg.Client.Exec(ctx, out)
	var late []*Call
	add := func(c *Call) { order = append(order, slices.Index(calls, c)) }
	if b == nil {
		for i := range calls {
			order = append(order, i)
		}
		return order, 0
	}
	f.spread(b)
	for i := range b.size() {
		if c := &b.call(i).Call; c.unanswered {
			late = append(late, c)
		} else {
			add(c)
			did++
		}
	}
	for _, c := range append(out[1:], late...) {
		add(c)
	}
	if len(late) > 0 {
		w.node.cfg.Client.Exec(ctx, late)
	}
	w.proc.batches.rest(0)
	if w.guard != nil {
		w.guard.batches.rest(0)
	}
	return order, did
}

// tokens matches the values that may differ between two servers: times of their clocks, and
// times to live.
var (
	tokens = regexp.MustCompile(`\b1[5-9]\d{14}\b`)
	where  = regexp.MustCompile(` script: [0-9a-f]{40}.*| ?Error running script.*@user_script:\d+: `)
)

// told is a server's data, with a time to live in ms.
type told struct {
	text   string
	ttl    int64
	before string // the counter before a grant; empty: not told, or no grant
}

// alike reports whether two servers have the same data. The machine may pause between the two
// reads.
func alike(a, b told) bool {
	const pause = 60_000
	return a.text == b.text && (a.before == b.before || a.before == "" || b.before == "") && (a.ttl < 0) == (b.ttl < 0) && max(a.ttl-b.ttl, b.ttl-a.ttl) < pause
}

// state returns all data of a server, except the mark and the keys of the guard. Tokens in keep
// stay as they are.
func (w *twin) state(t *testing.T, since int64, keep map[string]bool) map[string]told {
	t.Helper()
	state := map[string]told{}
	ctx := context.Background()
	for _, key := range w.admin.Keys(ctx, "*").Val() {
		if strings.HasSuffix(key, "mark") || strings.HasSuffix(key, "meta") || strings.HasSuffix(key, "shake") {
			continue
		}
		kind := w.admin.Type(ctx, key).Val()
		value := kind
		switch kind {
		case "string":
			value = w.admin.Get(ctx, key).Val()
		case "zset":
			value = fmt.Sprint(w.admin.ZRangeWithScores(ctx, key, 0, -1).Val())
		}
		state[key] = told{text: blur(value, since, keep), ttl: int64(w.admin.PTTL(ctx, key).Val() / time.Millisecond)}
	}
	return state
}

// blur removes the values from a text that two servers cannot share: the tokens that are a time
// of a server's clock. Proposed tokens, and tokens above these, stay.
func blur(text string, since int64, keep map[string]bool) string {
	return tokens.ReplaceAllStringFunc(text, func(s string) string {
		if n, _ := strconv.ParseInt(s, 10, 64); !keep[s] && n >= since-3e6 && n <= since+60e6 {
			return "now"
		}
		return s
	})
}

func answers(calls []*Call, ops []twinOp, since int64, keep map[string]bool) []told {
	var said []told
	for i, c := range calls {
		if c.Err != nil {
			said = append(said, told{text: where.ReplaceAllString(c.Err.Error(), "")})
			continue
		}
		reply, ttl, before := slices.Clone(c.Reply), int64(0), ""
		p := ops[i].proposal
		switch {
		case reply != nil:
		case c.Number > 1000 && p != 0 && (c.Number < since-3e6 || c.Number > since+60e6): // with the proposed token, and what was before
			reply, before = []any{int64(1), p, p + c.Number&(1<<22-1) - 1<<19}, "none"
			if behind := c.Number >> 22; behind > 0 {
				before = strconv.FormatInt(p-behind, 10)
			}
		case c.Number > 1000: // granted at this time, with the proposed token
			reply = []any{int64(1), cmp.Or(p, c.Number), c.Number}
		default:
			reply = []any{c.Number}
		}
		code, _ := number(reply, 0)
		if code == 0 && len(reply) == 4 {
			ttl, _ = number(reply, 2)
			reply[2] = nil
		}
		if code == 1 && len(reply) == 4 {
			before = cmp.Or(fmt.Sprint(reply[3]), "none")
			reply = reply[:3]
		}
		said = append(said, told{blur(fmt.Sprint(reply), since, keep), ttl, blur(before, since, keep)})
	}
	return said
}

// situations are the states that a key may have before an operation. Each is made from the key,
// its queue and counter, and a time of the clock in microseconds.
var situations = map[string]func(do func(args ...any), key string, now int64){
	"free, used a while ago": func(do func(...any), key string, now int64) {
		do("SET", fenceOf(key), now-30e6, "PX", 130000)
	},
	"free, used now": func(do func(...any), key string, now int64) { do("SET", fenceOf(key), now-1000, "PX", 130000) },
	"never used":     func(func(...any), string, int64) {},
	"held": func(do func(...any), key string, now int64) {
		do("SET", fenceOf(key), now-5000, "PX", 130000)
		do("SET", "app:"+key, ourValue(key, now), "PX", 500000)
	},
	"held, somebody is in the queue": func(do func(...any), key string, now int64) {
		do("SET", fenceOf(key), now-5000, "PX", 130000)
		do("SET", "app:"+key, ourValue(key, now), "PX", 500000)
		do("ZADD", queueOf(key), now-2000, "abc.1.500000")
		do("PEXPIRE", queueOf(key), 150000)
	},
	"held, a listener is in the queue": func(do func(...any), key string, now int64) {
		do("SET", "app:"+key, ourValue(key, now), "PX", 500000)
		do("ZADD", queueOf(key), "9007199254740991", "listen.abc")
	},
	"held, the queue is no queue": func(do func(...any), key string, now int64) {
		do("SET", "app:"+key, ourValue(key, now), "PX", 500000)
		do("SET", queueOf(key), "odd")
	},
	"free, somebody is in the queue": func(do func(...any), key string, now int64) {
		do("ZADD", queueOf(key), now-2000, "abc.2.500000")
	},
	"kept for the next": func(do func(...any), key string, now int64) {
		do("SET", "app:"+key, "redlock1:next|"+strconv.FormatInt(now-9000, 10)+"|abc.3.500000", "PX", 500000)
	},
	"held by another library": func(do func(...any), key string, now int64) {
		do("SET", "app:"+key, "f0reign", "PX", 500000)
	},
	"held by another library for ever": func(do func(...any), key string, now int64) {
		do("SET", "app:"+key, strings.Repeat("huge", 300))
	},
	"no lock at all":  func(do func(...any), key string, now int64) { do("RPUSH", "app:"+key, "x") },
	"a counter ahead": func(do func(...any), key string, now int64) { do("SET", fenceOf(key), now+100e6, "PX", 300000) },
	"a counter a little ahead": func(do func(...any), key string, now int64) {
		do("SET", fenceOf(key), now+80e6, "PX", 200000)
	},
	"a counter at its end":   func(do func(...any), key string, now int64) { do("SET", fenceOf(key), "9007199254740991") },
	"an odd counter":         func(do func(...any), key string, now int64) { do("SET", fenceOf(key), "odd") },
	"a counter that is none": func(do func(...any), key string, now int64) { do("RPUSH", fenceOf(key), "x") },
	"a counter with a point": func(do func(...any), key string, now int64) { do("SET", fenceOf(key), "17.5") },
	"the lock of the attempt": func(do func(...any), key string, now int64) {
		do("SET", "app:"+key, "o/"+key+"|"+strconv.FormatInt(now-7000, 10), "PX", 500000)
	},
}

func fenceOf(key string) string { return names.Prefix("app:").Counter(key) }
func queueOf(key string) string { return names.Prefix("app:").WaitQueue(key) }

// ourValue is the value of a lock that a release in these tests frees.
func ourValue(key string, now int64) string {
	return "holder/" + key + "|" + strconv.FormatInt(now-5000, 10)
}

// weathers are the faults that a server may have.
var weathers = map[string]func(do func(args ...any)){
	"well": func(func(...any)) {}, "well too": func(func(...any)) {}, "well as well": func(func(...any)) {},
	"out of memory": func(do func(...any)) { do("CONFIG", "SET", "maxmemory", "1") },
	"no MGET":       func(do func(...any)) { do("ACL", "SETUSER", twinUser, "-mget") },
	"no EXISTS":     func(do func(...any)) { do("ACL", "SETUSER", twinUser, "-exists") },
	"no DEL":        func(do func(...any)) { do("ACL", "SETUSER", twinUser, "-del") },
	"no SET":        func(do func(...any)) { do("ACL", "SETUSER", twinUser, "-set") },
	"no PTTL":       func(do func(...any)) { do("ACL", "SETUSER", twinUser, "-pttl") },
	"no TIME":       func(do func(...any)) { do("ACL", "SETUSER", twinUser, "-time") },
	"no queues": func(do func(...any)) {
		do("ACL", "SETUSER", twinUser, "resetkeys", "~app:k*", "~app:redlock1:fence:*", "~app:redlock1:mark", "~app:redlock1:meta")
	},
}

// TestABatchDoesWhatTheSingleScriptsDo draws operations and runs them on two servers, in
// batches and singly. Both must give the same replies, and leave the same keys with the same
// times to live. Tokens that are a time of the server's clock count as equal.
func TestABatchDoesWhatTheSingleScriptsDo(t *testing.T) {
	eachKind(t, func(t *testing.T, kind server.Kind) {
		for name, q := range map[string]*quorum.Info{"alone": nil, "guarded": {Terms: twinTerms}} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				duel(t, kind, q)
			})
		}
	})
}

func duel(t *testing.T, kind server.Kind, q *quorum.Info) {
	rounds := 400
	if testing.Short() {
		rounds = 40
	}
	a, b := newTwin(t, kind, q), newTwin(t, kind, q)
	began := time.Now().UnixMicro() // a proposal from before the quarantine's end would be raised to this end
	seed := uint64(began)
	r := rand.New(rand.NewPCG(seed, 1))
	did, drawn := 0, map[string]int{}
	for round := range rounds {
		weather := pick(r, weathers)
		now := time.Now().UnixMicro()
		ops, wheres := drawOps(r, now, began, strings.HasPrefix(weather, "well"))
		for _, w := range wheres {
			drawn[w]++
		}
		both := func(args ...any) {
			for _, w := range []*twin{a, b} {
				if err := w.admin.Do(t.Context(), args...).Err(); err != nil {
					t.Fatalf("%v: %v", args, err)
				}
			}
		}
		for key, where := range wheres {
			situations[where](both, key, now)
		}
		weathers[weather](both)
		callsA, callsB := make([]*Call, len(ops)), make([]*Call, len(ops))
		for i, o := range ops {
			callsA[i], callsB[i] = a.call(t, o, q), b.call(t, o, q)
		}
		since := time.Now().UnixMicro()
		order, n := a.send(callsA)
		did += n
		singly := make([]*Call, len(order))
		for i, at := range order {
			singly[i] = callsB[at]
		}
		b.node.cfg.Client.Exec(t.Context(), singly)
		paused := time.Since(time.UnixMicro(now)) > 400*time.Millisecond // the proposals have changed
		both("CONFIG", "SET", "maxmemory", "0")
		both("ACL", "SETUSER", twinUser, "allkeys", "+@all")
		keep := map[string]bool{}
		for _, o := range ops {
			keep[strconv.FormatInt(o.proposal, 10)] = true
		}
		saidA, saidB := answers(callsA, ops, since, keep), answers(callsB, ops, since, keep)
		stateA, stateB := a.state(t, since, keep), b.state(t, since, keep)
		if !paused && !slices.EqualFunc(saidA, saidB, alike) || !paused && !maps.EqualFunc(stateA, stateB, alike) {
			t.Errorf("round %d of seed %d, server %s:", round, seed, weather)
			for i, o := range ops {
				t.Errorf("%+v, where the key was %s, as number %d: batch %v, single %v", o, wheres[o.key], slices.Index(order, i), saidA[i], saidB[i])
			}
			for key := range stateA {
				if alike(stateA[key], stateB[key]) {
					continue
				}
				t.Errorf("%s: batch %v, single %v", key, stateA[key], stateB[key])
			}
			t.FailNow()
		}
		for key := range stateA {
			both("DEL", key)
		}
	}
	if testing.Short() {
		return // a few rounds may not draw every case
	}
	if did < rounds/8 {
		t.Errorf("the batches did only %d operations in %d rounds: too little was compared", did, rounds)
	}
	if len(drawn) < len(situations) {
		t.Errorf("%d of %d situations were drawn", len(drawn), len(situations))
	}
}

func pick[V any](r *rand.Rand, from map[string]V) string {
	return slices.Sorted(maps.Keys(from))[r.IntN(len(from))]
}

// drawOps draws operations on some keys, and the states of these keys.
func drawOps(r *rand.Rand, now, began int64, well bool) (ops []twinOp, wheres map[string]string) {
	wheres = map[string]string{}
	for range 2 + r.IntN(8) {
		key := "k" + strconv.Itoa(r.IntN(12))
		wheres[key] = pick(r, situations)
		o := twinOp{key: key}
		switch r.IntN(8) {
		case 0, 1, 2:
			o.release, o.value = true, ourValue(key, now)
		case 3:
			o.release, o.value = true, "other/"+key+"|"+strconv.FormatInt(now-5000, 10)
		default:
			o.owner = "o/" + key
			o.proposal = []int64{0, 0, max(now-1e6, began), max(now-1.5e6, began), now + 200e3, now - 100e6, now + 100e6}[r.IntN(7)]
			o.late = well && r.IntN(20) == 0
		}
		ops = append(ops, o)
	}
	return ops, wheres
}

// TestACrowdIsServedByBatches: with many callers at once there are far fewer scripts than calls.
func TestACrowdIsServedByBatches(t *testing.T) {
	t.Parallel()
	for name, q := range map[string]*quorum.Info{"alone": nil, "guarded": {Terms: twinTerms}} {
		t.Run(name, func(t *testing.T) {
			s := server.Redis(t)
			c := dialServer(t, s)
			n, err := New(Config{
				Client: &wire{before: func([]*Call) *redis.Client { return c }, admin: func() *redis.Client { return c }},
				Name:   "redis", Addr: "server", CallTimeout: 30 * time.Second,
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = n.Close() })
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
