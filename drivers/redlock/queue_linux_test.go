package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// The simulated node has the same lock, counter, mark and wait queue as a real server whose
// scripts are called with the same arguments at the same time. The calls cover queued waiters,
// keys that are reserved for one of them, waiters that leave, waiters whose process is gone,
// lost counters, and a clock that is set.
func TestTheSimulatedQueueIsTheRealOne(t *testing.T) {
	t.Parallel()
	duels := uint64(Amount(30, 60))
	if testing.Short() {
		duels = 6
	}
	for _, kind := range []server.Kind{server.KindRedis, server.KindValkey} {
		t.Run(string(kind), func(t *testing.T) {
			s := server.StartFor(t, kind, server.WithClock())
			c := redis.NewClient(&redis.Options{Addr: s.Addr()})
			defer func() { _ = c.Close() }()
			there := c.Subscribe(t.Context(), "to:w0", "to:w1") // and w2 is gone
			defer func() { _ = there.Close() }()
			for range 2 {
				if _, err := there.Receive(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			met := map[string]int{}
			for seed := range duels {
				d := newQueueDuel(t, c, s, seed, met)
				d.run()
			}
			t.Log(met)
			for _, what := range []string{"granted", "held", "kept", "handed over", "overtaken", "passed over", "left", "given back", "lost", "joined", "refused", "renewed", "floor"} {
				if met[what] == 0 {
					t.Errorf("never %s", what)
				}
			}
		})
	}
}

// included matches a line of a script that is replaced by another file.
var included = regexp.MustCompile(`(?m)^ *-- lua/(\w+)\.lua\n`)

// luaText returns a script as the driver composes it, for a node that is in quarantine until till.
func luaText(t *testing.T, name string, terms *quorum.Terms, till int64) string {
	t.Helper()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("..", "internal", "redisnode", "lua", name+".lua"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	body := read(name)
	if name != "release" {
		body = read("time") + body
	}
	body = included.ReplaceAllStringFunc(body, func(line string) string { return read(included.FindStringSubmatch(line)[1]) })
	return fmt.Sprintf(`local RUN, GRACE, QUARANTINE, till = '', %d, %d, %d
local function body()
%s
end
local function time() local t = redis.call('TIME') return t[1] * 1000000 + t[2] end
local before = time()
local reply = body()
return {reply, before, time()}`, terms.Grace.Milliseconds(), terms.Quarantine.Microseconds(), till, body)
}

// queueDuel makes the same calls on a server's scripts and on their model.
type queueDuel struct {
	t     *testing.T
	c     *redis.Client
	redis *server.Server
	rng   *rand.Rand
	sim   *simServer
	terms quorum.Terms
	texts map[string]string
	keys  [4]string // lock, counter, mark, wait queue
	met   map[string]int
	log   []string
	took  time.Duration // the server's clock in the last script

	waiters [3]simPlace // a name is empty while the client does not wait
	places  int
	last    uint64 // token
	owner   string // the latest grant
	token   uint64
	before  int64 // the counter before it, and 1; 0: unknown
}

func newQueueDuel(t *testing.T, c *redis.Client, s *server.Server, seed uint64, met map[string]int) *queueDuel {
	d := &queueDuel{t: t, c: c, redis: s, rng: rand.New(rand.NewPCG(seed, 11)), sim: newSimServer(0), met: met, texts: map[string]string{}, owner: "nobody/1", token: 1}
	d.terms.Guard, d.terms.Quarantine, d.terms.Grace = 30*time.Second, 31*time.Second, 850*time.Millisecond
	name := fmt.Sprintf("{%d}", seed)
	d.keys = [4]string{name + "lock", name + "counter", name + "mark", name + "queue"}
	if d.rng.IntN(2) == 0 {
		d.sim.memory.meta.till = 1
	}
	d.set(0)
	return d
}

func (d *queueDuel) run() {
	for range 80 {
		d.log = append(d.log, d.step())
		d.compare()
		if d.t.Failed() {
			d.t.Fatalf("%s", strings.Join(d.log, "\n"))
		}
	}
}

func (d *queueDuel) step() string {
	switch op := d.rng.IntN(20); {
	case op < 2:
		return d.acquire(fmt.Sprintf("o%d/1", d.rng.IntN(3)), simPlace{})
	case op < 9:
		i := d.rng.IntN(len(d.waiters))
		w := &d.waiters[i]
		if w.place == "" {
			d.places++
			w.place, w.since = fmt.Sprintf("w%d.%d.%d", i, d.places, 60_000+d.rng.IntN(60_000)), d.near(2*time.Second)
			if d.rng.IntN(8) == 0 {
				w.since = 0
			}
		}
		return d.acquire(fmt.Sprintf("w%d/%d", i, d.places), *w)
	case op < 11:
		return d.join()
	case op < 13:
		return d.renew()
	case op < 16:
		return d.release(d.owner, d.token, "", d.rng.IntN(4) > 0)
	case op < 17 && d.rng.IntN(2) == 0:
		return d.giveBack(d.rng.IntN(2) == 0)
	case op < 17:
		if i := d.rng.IntN(len(d.waiters)); d.waiters[i].place != "" {
			place := d.waiters[i].place
			d.waiters[i] = simPlace{}
			d.met["left"]++
			return d.release("", 0, place, true)
		}
		return d.release("o0/1", 0, "", true)
	case op < 18:
		d.do("DEL", d.keys[0])
		d.sim.expire()
		return "the lock ends"
	case op < 19:
		d.do("DEL", d.keys[1])
		d.sim.memory.lock.counter = 0
		return "the counter is lost"
	}
	steps := []time.Duration{0, 3 * time.Second, -8 * time.Second, 25 * time.Second, 3 * time.Minute, -4 * time.Minute}
	ahead := steps[d.rng.IntN(len(steps))] + time.Duration(d.rng.IntN(1000))*time.Millisecond
	d.set(ahead)
	return fmt.Sprintf("the clock is set to %v", ahead)
}

// near returns a time near now, by the server's clock, in microseconds.
func (d *queueDuel) near(most time.Duration) uint64 {
	return uint64(d.now().Add(time.Duration(d.rng.Int64N(int64(2*most))) - most).UnixMicro())
}

func (d *queueDuel) now() time.Time {
	now, err := d.c.Time(d.t.Context()).Result()
	if err != nil {
		d.t.Fatal(err)
	}
	return now
}

// set sets the clock, and removes the keys that have ended by then, which the server would do
// at some later time. If the node was in quarantine, this ended a short while ago: until then
// the guard lets no acquire through.
func (d *queueDuel) set(ahead time.Duration) {
	if err := d.redis.SetClock(ahead); err != nil {
		d.t.Fatal(err)
	}
	for _, key := range d.keys {
		d.do("TYPE", key)
	}
	d.sim.at = d.now()
	d.sim.key()
	if till := &d.sim.memory.meta.till; *till > 0 {
		*till = d.sim.at.Add(-time.Duration(d.rng.IntN(3000)) * time.Millisecond).UnixMicro()
	}
	for _, script := range []string{"acquire", "join", "renew", "release"} {
		d.texts[script] = luaText(d.t, script, &d.terms, d.sim.memory.meta.till)
	}
}

func (d *queueDuel) do(command ...any) any {
	r, err := d.c.Do(d.t.Context(), command...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		d.t.Fatal(err)
	}
	return r
}

// eval calls a script, sets the model's clock to the script's, and returns the reply. clock
// returns the index of the script's clock in the reply, or -1 if the reply has none: then the
// clock read before the script is used.
func (d *queueDuel) eval(script string, clock func(code int64) int, args ...any) []any {
	keys := d.keys[:3]
	switch {
	case script == "release":
		keys = []string{d.keys[0], d.keys[3], d.keys[1]}
	case script == "acquire" && len(args) > 5:
		keys = d.keys[:]
	}
	all, err := d.c.Eval(context.Background(), d.texts[script], keys, args...).Slice()
	if err != nil {
		d.t.Fatalf("%s %v: %v\n%s", script, args, err, strings.Join(d.log, "\n"))
	}
	r, full := all[0].([]any)
	if short := all[0]; !full && script == "acquire" { // granted at the clock, or as proposed
		token, now := int64(args[3].(uint64)), short.(int64)
		if token == 0 {
			r = []any{int64(1), now, now}
		} else {
			r = []any{int64(1), token, token + now&(1<<22-1) - 1<<19, ""}
			if behind := now >> 22; behind > 0 {
				r[3] = strconv.FormatInt(token-behind, 10)
			}
		}
	} else if !full {
		r = []any{short}
	}
	now := all[1].(int64)
	if i := clock(r[0].(int64)); i >= 0 {
		now = r[i].(int64)
	}
	d.sim.at, d.took = time.UnixMicro(now), time.Duration(all[2].(int64)-now)*time.Microsecond
	return r
}

const (
	queueTTL  = 100 * time.Second
	queueLife = 120 * time.Second
	distant   = "9007199254740991"
)

func (d *queueDuel) proposal() uint64 {
	if d.rng.IntN(4) == 0 {
		return 0
	}
	return d.near(4 * time.Second)
}

func (d *queueDuel) acquire(me string, p simPlace) string {
	token := d.proposal()
	args := []any{distant, me, queueTTL.Milliseconds(), token, queueLife.Milliseconds()}
	if p.place != "" {
		args = append(args, p.place, simQueueLife.Milliseconds(), p.since)
	}
	was := d.sim.memory.lock
	r := d.eval("acquire", func(code int64) int { return map[int64]int{1: 2, 0: 3}[code] }, args...)
	said := d.verdict(r)
	s := d.sim.acquire(simCall{me: me, ttl: queueTTL, token: token, life: queueLife, place: p}, &d.terms)
	what := fmt.Sprintf("%s acquires, with %v and token %d", me, p, token)
	d.same(what, said, s)
	if s.err == nil {
		d.granted(me, s.fence)
		if len(r) > 3 {
			if d.before = s.before; s.before > 0 && r[3] != strings.TrimPrefix(strconv.FormatInt(s.before-1, 10), "0") {
				d.t.Errorf("%s: the counter was %q before, by the model %d", what, r[3], s.before-1)
			}
		}
		switch {
		case was.next != "" && was.next == p.place:
			d.met["handed over"]++
		case was.next != "" && d.sim.at.Before(was.until):
			d.met["overtaken"]++
		}
		if p.place != "" {
			d.waiters[slices.IndexFunc(d.waiters[:], func(w simPlace) bool { return w.place == p.place })] = simPlace{}
		}
	}
	return what + ": " + said
}

func (d *queueDuel) granted(me string, token uint64) {
	d.met["granted"]++
	d.owner, d.token, d.before, d.last = me, token, 0, max(d.last, token)
	if d.sim.memory.mark.floor > 0 {
		d.met["floor"]++
	}
}

func (d *queueDuel) join() string {
	me, token, seen := fmt.Sprintf("o%d/2", d.rng.IntN(2)), d.last+uint64(d.rng.IntN(4)), d.near(150*time.Second)
	if token < 4 {
		token = d.near(time.Second)
	}
	token -= 2
	r := d.eval("join", func(code int64) int { return map[int64]int{1: 2, 0: 3, -2: 2}[code] }, distant, me, queueTTL.Milliseconds(), token, queueLife.Milliseconds(), seen)
	said := d.verdict(r)
	s := d.sim.join(simCall{me: me, ttl: queueTTL, token: token, life: queueLife, seen: seen}, &d.terms)
	what := fmt.Sprintf("%s joins at %d, confirmed at %d", me, token, seen)
	d.same(what, said, s)
	if s.err == nil {
		d.met["joined"]++
		d.granted(me, s.fence)
	}
	return what + ": " + said
}

func (d *queueDuel) renew() string {
	me, token, least := d.owner, d.token, uint64(0)
	if d.rng.IntN(4) == 0 {
		token++
	}
	if d.rng.IntN(2) == 0 {
		least = d.last + uint64(d.rng.IntN(12_000_000))
	}
	r := d.eval("renew", func(int64) int { return 1 }, distant, fmt.Sprintf("%s|%d", me, token), queueTTL.Milliseconds(), least, queueLife.Milliseconds(), 0)
	said := map[int64]string{1: fmt.Sprintf("granted %d", token), 0: "lost"}[r[0].(int64)]
	s := d.sim.renew(simCall{me: me, ttl: queueTTL, token: token, least: least, life: queueLife}, &d.terms)
	what := fmt.Sprintf("%s renews %d, at least %d", me, token, least)
	d.same(what, said, s)
	if s.err == nil {
		d.met["renewed"]++
	}
	return what + ": " + said
}

// release frees the lock of me, or gives up a place in the queue; tells says that the reply to
// PUBLISH shows which waiters are there.
func (d *queueDuel) release(me string, token uint64, quits string, tells bool) string {
	value, flag := me+"|", "0"
	if me == "" {
		value = ""
	} else if token != 0 {
		value += strconv.FormatUint(token, 10)
	}
	if tells {
		flag = "1"
	}
	args := []any{flag, value, "to:"}
	if quits != "" {
		args = append(args, quits)
	}
	r := d.eval("release", func(int64) int { return -1 }, args...)
	d.sim.gone = map[string]bool{"w2": tells}
	waited := len(d.sim.queue)
	s := d.sim.release(simCall{me: me, token: token}, quits)
	what := fmt.Sprintf("%s releases %d, and gives %q up (%v)", me, token, quits, tells)
	said := "granted 0"
	if r[0].(int64) == 0 {
		said = "lost"
	}
	d.same(what, said, s)
	if kept := r[0].(int64) == 3; kept != (d.sim.memory.lock.next != "" && said != "lost") {
		d.t.Errorf("%s: the real node says %v, the simulated one has %+v", what, r, d.sim.memory.lock)
	} else if kept && waited-len(d.sim.queue) > 1 {
		d.met["passed over"]++
	}
	return what + ": " + said
}

// giveBack frees the lock of the latest grant, and gives the vote back.
func (d *queueDuel) giveBack(silent bool) string {
	if d.before == 0 {
		return d.release(d.owner, d.token, "", true)
	}
	before, told := "", ""
	if d.before > 1 {
		before = strconv.FormatInt(d.before-1, 10)
	}
	if silent {
		told = "silent"
	}
	r := d.eval("release", func(int64) int { return -1 }, "1", fmt.Sprintf("%s|%d", d.owner, d.token), "to:", "", told, before)
	d.sim.gone = map[string]bool{"w2": true}
	s := d.sim.release(simCall{me: d.owner, token: d.token, back: d.before, quiet: silent}, "")
	what := fmt.Sprintf("%s gives %d back (silently: %v), before which the counter was %q", d.owner, d.token, silent, before)
	said := "granted 0"
	if r[0].(int64) == 0 {
		said = "lost"
	} else {
		d.met["given back"]++
	}
	d.same(what, said, s)
	return what + ": " + said
}

// verdict parses the reply of acquire and join.
func (d *queueDuel) verdict(r []any) string {
	switch r[0].(int64) {
	case 1:
		return fmt.Sprintf("granted %d", r[1])
	case -2:
		return "refused"
	case 0:
		value := r[1].(string)
		if rest, ok := strings.CutPrefix(value, "redlock1:next|"); ok {
			return "kept for " + rest
		}
		owner, _, _ := strings.Cut(value, "|")
		return "held by " + owner
	}
	return fmt.Sprint(r)
}

func (d *queueDuel) same(what, said string, s simReply) {
	var held *driver.HeldError
	k, sim := &d.sim.memory.lock, fmt.Sprintf("granted %d", s.fence)
	switch {
	case errors.As(s.err, &held) && held.ReservedForWaiter:
		sim = fmt.Sprintf("kept for %d|%s", k.since, k.next)
		d.met["kept"]++
	case errors.As(s.err, &held):
		sim = "held by " + held.Holder
		d.met["held"]++
	case errors.Is(s.err, driver.ErrLost):
		sim = "lost"
		d.met["lost"]++
	case s.err != nil:
		sim = "refused"
		d.met["refused"]++
	}
	if sim != said {
		d.t.Errorf("%s: the real node says %s, the simulated one %s", what, said, sim)
	}
}

// compare compares the stored data: the lock, the counter and their ends, the mark, and the
// wait queue. Servers count whole milliseconds, and read the clock again for each key that they
// set.
func (d *queueDuel) compare() {
	k, m := d.sim.key(), d.sim.memory.mark
	lock, counter, mark := "", "", ""
	switch {
	case k.owner != "":
		lock = fmt.Sprintf("%s|%d", k.owner, k.fence)
	case k.next != "":
		lock = fmt.Sprintf("redlock1:next|%d|%s", k.since, k.next)
	}
	if k.counter != 0 {
		counter = strconv.FormatUint(k.counter, 10)
	}
	if m.high != 0 {
		mark = fmt.Sprintf("%d %d %d", m.high, m.top, m.floor)
	}
	for i, sim := range []string{lock, counter, mark} {
		real, _ := d.do("GET", d.keys[i]).(string)
		if real != sim {
			d.t.Errorf("%s: the real node has %q, the simulated one %q", d.keys[i], real, sim)
		}
		ends := []*time.Time{&k.until, &k.ends, nil}[i]
		if sim == "" || ends == nil {
			continue
		}
		at := time.UnixMilli(d.do("PEXPIRETIME", d.keys[i]).(int64))
		if late := at.Sub(*ends); late < -2*time.Millisecond || late > d.took+2*time.Millisecond {
			d.t.Errorf("%s: the real node has it until %v, the simulated one until %v", d.keys[i], at, *ends)
		}
		*ends = at
	}
	d.took = 0
	var queue []string
	for _, p := range d.sim.queue {
		queue = append(queue, p.place, strconv.FormatUint(p.since, 10))
	}
	var real []string
	places, err := d.c.ZRangeWithScores(d.t.Context(), d.keys[3], 0, -1).Result()
	if err != nil {
		d.t.Fatal(err)
	}
	for _, z := range places {
		real = append(real, z.Member.(string), strconv.FormatFloat(z.Score, 'f', 0, 64))
	}
	if !slices.Equal(queue, real) {
		d.t.Errorf("the real queue is %v, the simulated one %v", real, queue)
	}
}
