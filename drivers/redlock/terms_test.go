package redlock

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver/boot"
	"github.com/redlock-go/redlock/driver/quorum"
)

// rules are the rules of terms.go, so that a test can break them.
type rules struct {
	grace      func(*quorum.Terms) time.Duration
	quarantine func(*quorum.Terms) time.Duration
	judge      func(start boot.Instant, ttl time.Duration, answers []reading, q, drift int) (expires, from boot.Instant)
	others     func(bounds []time.Duration, q int) time.Duration
}

func soundRules() rules {
	return rules{
		grace:      func(t *quorum.Terms) time.Duration { return t.Grace },
		quarantine: func(t *quorum.Terms) time.Duration { return t.Quarantine },
		judge:      judge,
		others:     othersAtMost,
	}
}

// The rules in numbers. An answer is the node's clock when it answered, and when it was sent and received, in ms; a
// second clock is of a second answer.
func TestTheRulesOfTimeInNumbers(t *testing.T) {
	const ms, start = time.Millisecond, boot.Instant(time.Hour)
	type answer []time.Duration
	for name, c := range map[string]struct {
		q             int
		answers       []answer
		expires, from time.Duration // after start
	}{
		"one node":                                       {1, []answer{{0, 1, 9}}, 9898 * ms, 9 * ms},
		"clocks that differ by what is excused":          {2, []answer{{0, 0, 10}, {1000, 0, 9}}, 9898 * ms, 10 * ms},
		"by more":                                        {2, []answer{{0, 0, 10}, {1500, 0, 9}}, 9398 * ms, 10*ms + 505050600},
		"by more, when it was asked later":               {2, []answer{{0, 0, 10}, {1500, 1400, 1409}}, 9898 * ms, 1409 * ms},
		"the first clock shows the start":                {2, []answer{{3000, 0, 10}, {3100, 900, 910, 500}}, 8398 * ms, 910*ms + 1616161700},
		"the last two of three agree":                    {2, []answer{{0, 0, 1}, {9000, 0, 3}, {5000, 0, 2}, {9100, 0, 4}}, 9898 * ms, 4 * ms},
		"the first two of three":                         {2, []answer{{100, 0, 1}, {5000, 0, 3}, {0, 0, 2}}, 9898 * ms, 2 * ms},
		"a node with a larger drift and a lesser excuse": {2, []answer{{0, 0, 10}, {1000, 0, 9, 1000, 2, 900}}, 9698 * ms, 10*ms + 102040900},
	} {
		var answers []reading
		for _, a := range c.answers {
			r := reading{earliest: a[0] * ms, latest: a[0] * ms, sent: start.Add(a[1] * ms), received: start.Add(a[2] * ms), excuse: time.Second, drift: 1, known: true}
			if len(a) > 3 {
				second := r
				second.earliest, second.latest = a[3]*ms, a[3]*ms
				if len(a) > 4 {
					second.drift, second.excuse = int32(a[4]), a[5]*ms
				}
				r = reading{}.and(r).and(second).and(reading{})
			}
			answers = append(answers, r)
		}
		if expires, from := judge(start, 10*time.Second, answers, c.q, 1); expires.Sub(start) != c.expires || from.Sub(start) != c.from {
			t.Errorf("%s: ends after %v, returned after %v; want %v, %v", name, expires.Sub(start), from.Sub(start), c.expires, c.from)
		}
	}
	want := quorum.Terms{
		N: 5, Guard: 30 * time.Second, Excuse: 150*ms + 6*time.Microsecond, Allowance: 50*ms + 2*time.Microsecond, Drift: 1,
		Quarantine: 30*time.Second + 300*ms + 200*ms + 8*time.Microsecond + 10*ms,
		Grace:      300*ms + 12*time.Microsecond + 125*ms + 5*time.Microsecond + 10*ms,
	}
	if got := derive(5, 30*time.Second+7, 50*ms+3*time.Microsecond, 1); got != want {
		t.Errorf("terms are %+v, want %+v", got, want)
	}
	for d, want := range map[time.Duration]time.Duration{1: 1, 100: 1, 101: 2, 10000: 100} {
		if got := percent(d, 1); got != want || least(d, 1) != d-want {
			t.Errorf("one percent of %d is %d, want %d", d, got, want)
		}
	}
	for _, c := range []struct {
		bounds []time.Duration
		q      int
		want   time.Duration
	}{{nil, 1, 0}, {[]time.Duration{7}, 3, 0}, {[]time.Duration{7}, 2, 7}, {[]time.Duration{7, 5}, 3, 7}, {[]time.Duration{9, 7, 5, 8}, 3, 8}, {[]time.Duration{9, 7, 5}, 4, 9}} {
		if got := othersAtMost(c.bounds, c.q); got != c.want {
			t.Errorf("of %v the others are %d at most, want %d", c.bounds, got, c.want)
		}
	}
	r := reading{latest: 10, sent: 1, received: 5}
	if mid, half := r.offset(); mid != 7 || half != 2 {
		t.Errorf("a clock is %d ± %d ahead, want 7 ± 2", mid, half)
	}
}

// duo is two clients that differ, in the worst world that their terms allow, all drawn at random.
type duo struct {
	rng      *rand.Rand
	q        int
	terms    quorum.Terms // of the node X, which both clients count
	eps      time.Duration
	ttl      [2]time.Duration
	link     [2]time.Duration // longest one-way time of a packet
	drift    [2]int
	rate     [2]float64 // of the clients' boot-time clocks: local time per true time
	lead     [2]time.Duration
	excuse   [2][]time.Duration // of the other nodes that each client counts
	badNodes [2]int             // how many of these have a wrong clock
}

// edge draws a number from 0 to 1, often 0 or 1 itself.
func (d *duo) edge() float64 {
	switch d.rng.IntN(3) {
	case 0:
		return 0
	case 1:
		return 1
	}
	return d.rng.Float64()
}

func (d *duo) up(most time.Duration) time.Duration { return time.Duration(d.edge() * float64(most)) }

// within draws a duration, with all orders of magnitude equally likely.
func (d *duo) within(least, most time.Duration) time.Duration {
	return time.Duration(float64(least) * math.Pow(float64(most)/float64(least), d.edge()))
}

func newDuo(seed uint64) *duo {
	d := &duo{rng: rand.New(rand.NewPCG(seed, 7))}
	d.q = 2 + d.rng.IntN(3)
	guard := d.within(time.Second, time.Hour)
	allowance := d.within(time.Millisecond, guard/4)
	d.terms = derive(2*d.q-1, guard, allowance, 1+d.rng.IntN(8))
	least := allowance // the least allowance of any node: the clocks keep to all
	for i := range 2 {
		for range d.q - 1 { // the other nodes' terms may differ
			a := allowance
			if d.rng.IntN(3) == 0 {
				a = d.within(time.Millisecond, guard/4)
			}
			least = min(least, a)
			d.excuse[i] = append(d.excuse[i], derive(2*d.q-1, guard, a, 1).Excuse)
		}
		d.ttl[i] = d.within(10*time.Millisecond, guard)
		d.link[i] = d.up(d.ttl[i] / 2)
		d.drift[i] = d.terms.Drift + d.rng.IntN(8)
		most := float64(d.drift[i]) / 100
		d.rate[i] = 1 - most/(1+most) + d.edge()*(most+most/(1+most))
		d.lead[i] = d.up(time.Hour)
	}
	d.eps = least / 2
	d.badNodes[d.rng.IntN(2)] = d.rng.IntN(d.q - 1) // besides X: q−1 in all
	return d
}

// local returns a client's clock at a true time.
func (d *duo) local(i int, at time.Duration) boot.Instant {
	return boot.Instant(float64(d.lead[i]) + float64(at)*d.rate[i])
}

// real returns the true time at which a client's clock shows at.
func (d *duo) real(i int, at boot.Instant) time.Duration {
	return time.Duration((float64(at) - float64(d.lead[i])) / d.rate[i])
}

// ask returns the other nodes' answers to a request that client i makes at a true time. Good
// clocks are usually off by lean·ε.
func (d *duo) ask(i int, at time.Duration, lean float64) []reading {
	answers := make([]reading, 0, d.q)
	for j, excuse := range d.excuse[i] {
		there := d.up(d.link[i])
		off := time.Duration(lean * float64(d.eps))
		if d.rng.IntN(4) == 0 {
			off = time.Duration((2*d.rng.Float64() - 1) * float64(d.eps))
		}
		if j < d.badNodes[i] {
			off *= time.Duration(1 + d.rng.IntN(3))
		}
		clock := at + there + off
		answers = append(answers, reading{
			earliest: clock, latest: clock, sent: d.local(i, at), received: d.local(i, at+there+d.up(d.link[i])),
			excuse: excuse, drift: int32(d.terms.Drift), known: true,
		})
	}
	return answers
}

// with adds X's answer. X's clock shows the given value, whatever the true time.
func (d *duo) with(i int, answers []reading, at, clock time.Duration) []reading {
	there := d.up(d.link[i])
	return append(answers, reading{
		earliest: clock, latest: clock, sent: d.local(i, at), received: d.local(i, at+there+d.up(d.link[i])),
		excuse: d.terms.Excuse, drift: int32(d.terms.Drift), known: true,
	})
}

const dawn = 24 * time.Hour // the clocks' value at true time zero

// second returns how long after the end of the holder's lease the bidder's is returned, if X
// grants the key when its clock shows free. It returns false if the bidder refuses the grant.
// The bidder asks at the worst moment.
func (d *duo) second(r *rules, deadline, free time.Duration) (time.Duration, bool) {
	excuse := d.terms.Excuse
	for _, e := range d.excuse[1] {
		excuse = min(excuse, e)
	}
	// At about this time the other nodes' clocks agree.
	at := free - excuse - d.eps - d.up(2*d.link[1]) - d.up(excuse)
	if d.rng.IntN(4) == 0 {
		at = deadline - d.up(2*d.link[1])
	}
	answers := d.with(1, d.ask(1, at, 1), at, free)
	expires, from := r.judge(d.local(1, at), d.ttl[1], answers, d.q, d.drift[1])
	if from >= expires {
		return 0, false
	}
	return d.real(1, from) - deadline, true
}

// rivals plays a holder, and a bidder that gets the key on X when the holder's key ends there.
func (d *duo) rivals(r *rules) (margin time.Duration, ok bool) {
	at := dawn
	answers := d.ask(0, at, -1)
	// X's clock is as far behind as possible without a cost to the holder.
	begun, excuse := time.Duration(0), d.terms.Excuse
	for _, a := range answers {
		begun = max(begun, a.latest-least(a.sent.Sub(d.local(0, at)), max(d.drift[0], d.terms.Drift)))
		excuse = min(excuse, a.excuse)
	}
	clock := begun - excuse
	if d.rng.IntN(3) == 0 {
		clock += time.Duration((d.rng.Float64() - 0.5) * 4 * float64(excuse))
	}
	expires, from := r.judge(d.local(0, at), d.ttl[0], d.with(0, answers, at, clock), d.q, d.drift[0])
	if from >= expires {
		return 0, false
	}
	setBack := d.up(d.terms.Allowance + d.terms.Allowance/2)
	return d.second(r, d.real(0, expires), clock+d.ttl[0]+r.grace(&d.terms)-setBack)
}

// forgetful plays a holder whose key X forgets at once, and a bidder that gets the key when X
// votes again.
func (d *duo) forgetful(r *rules) (margin time.Duration, ok bool) {
	d.ttl[0] = d.terms.Guard
	at := dawn
	answers := d.ask(0, at, -1)
	expires, from := r.judge(d.local(0, at), d.ttl[0], d.with(0, answers, at, answers[0].latest), d.q, d.drift[0])
	if from >= expires {
		return 0, false
	}
	// X starts with a clock that is far behind. All other clocks are known. As many of them are
	// wrong as is allowed besides X: q−2.
	now := at + d.up(time.Second)
	bounds := make([]time.Duration, 0, 2*d.q-2)
	for i := range 2*d.q - 2 {
		off := -d.eps
		if i < d.q-2 {
			off = -d.up(time.Hour)
		}
		bounds = append(bounds, now+off+d.up(d.link[1]))
	}
	if d.rng.IntN(2) == 0 {
		bounds = bounds[:d.q-1] // only as many clocks are known as are needed
	}
	till := max(now-d.up(time.Hour), r.others(bounds, d.q)) + r.quarantine(&d.terms)
	return d.second(r, d.real(0, expires), till)
}

// smallest plays n duos, or until one overlaps, and returns the smallest margin, and its seed.
func smallest(n int, r rules) (margin time.Duration, worst uint64, played int) {
	margin = math.MaxInt64
	for seed := range uint64(n) {
		d := newDuo(seed)
		play := d.rivals
		if seed%4 == 3 {
			play = d.forgetful
		}
		m, ok := play(&r)
		if !ok {
			continue
		}
		played++
		if m < margin {
			margin, worst = m, seed
		}
		if margin <= 0 {
			break
		}
	}
	return margin, worst, played
}

// judged changes what judge returns.
func judged(edit func(start boot.Instant, ttl time.Duration, answers []reading, drift int, expires, from boot.Instant) (boot.Instant, boot.Instant)) func(*rules) {
	return func(r *rules) {
		r.judge = func(start boot.Instant, ttl time.Duration, answers []reading, q, drift int) (boot.Instant, boot.Instant) {
			expires, from := judge(start, ttl, answers, q, drift)
			return edit(start, ttl, answers, drift, expires, from)
		}
	}
}

// More than ten thousand pairs of clients that differ, with the worst clocks and delays that
// the terms allow: by the rules of terms.go, which the engine uses, no two leases are valid at
// once. If any margin is taken out, some are.
func TestNoPairOfClientsOverlaps(t *testing.T) {
	draws := 40_000
	if testing.Short() {
		draws = 10_000
	}
	margin, seed, played := smallest(draws, soundRules())
	t.Logf("%d of %d pairs were both granted: the smallest margin is %v (pair %d)", played, draws, margin, seed)
	if margin <= 0 {
		t.Errorf("pair %d: the second lease is returned %v before the first has ended", seed, -margin)
	}
	if played < draws/4 { // pairs whose leases were both granted
		t.Errorf("only %d of %d pairs were played", played, draws)
	}
	for name, out := range map[string]func(*rules){
		"the grace's excuse": func(r *rules) {
			r.grace = func(t *quorum.Terms) time.Duration { return t.Grace - t.Excuse }
		},
		"the grace's good clocks": func(r *rules) {
			r.grace = func(t *quorum.Terms) time.Duration { return t.Grace - t.Allowance }
		},
		"the grace's set-back": func(r *rules) {
			r.grace = func(t *quorum.Terms) time.Duration { return t.Grace - t.Allowance - t.Allowance/2 }
		},
		"the whole grace": func(r *rules) {
			r.grace = func(t *quorum.Terms) time.Duration { return t.Guard / 1000 }
		},
		"the rule hold": judged(func(start boot.Instant, ttl time.Duration, _ []reading, drift int, _, from boot.Instant) (boot.Instant, boot.Instant) {
			return start.Add(validity(ttl, drift)), from
		}),
		"the rule return": judged(func(_ boot.Instant, _ time.Duration, answers []reading, _ int, expires, _ boot.Instant) (boot.Instant, boot.Instant) {
			return expires, answers[0].received
		}),
		"the drift": judged(func(_ boot.Instant, ttl time.Duration, _ []reading, drift int, expires, from boot.Instant) (boot.Instant, boot.Instant) {
			return expires.Add(percent(ttl, drift)), from
		}),
		"the start of a lease": judged(func(start boot.Instant, _ time.Duration, _ []reading, _ int, expires, from boot.Instant) (boot.Instant, boot.Instant) {
			return expires.Add(from.Sub(start)), from
		}),
		"the least excuse among the nodes": func(r *rules) {
			r.judge = func(start boot.Instant, ttl time.Duration, answers []reading, q, drift int) (boot.Instant, boot.Instant) {
				most := answers[0].excuse
				for _, a := range answers {
					most = max(most, a.excuse)
				}
				for i := range answers {
					answers[i].excuse = most
				}
				return judge(start, ttl, answers, q, drift)
			}
		},
		"the quarantine's excuse": func(r *rules) {
			r.quarantine = func(t *quorum.Terms) time.Duration { return t.Quarantine - t.Excuse - percent(t.Guard, t.Drift) }
		},
		"the other nodes' clocks": func(r *rules) {
			r.others = func([]time.Duration, int) time.Duration { return 0 }
		},
		"the smallest bounds among the others": func(r *rules) {
			r.others = func(bounds []time.Duration, q int) time.Duration { return othersAtMost(bounds, q-1) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := soundRules()
			out(&r)
			margin, seed, _ := smallest(draws, r)
			if margin > 0 {
				t.Fatalf("without %s no pair overlaps: the smallest margin is %v", name, margin)
			}
			t.Logf("without %s pair %d overlaps by %v", name, seed, -margin)
		})
	}
}
