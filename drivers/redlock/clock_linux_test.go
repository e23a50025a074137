package redlock_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var clockTrials = flag.Int("redlock.trials", 0, "how often the clock of one of five nodes is stepped while clients compete; 0: 20, or 100 in the deep depth (200 were run many times)")

// five starts five servers, A to E, each with its own wall clock.
func five(t testing.TB) *cluster {
	t.Helper()
	c := &cluster{t: t, schemes: []string{"redis", "valkey"}}
	for i := range 5 {
		kind := []server.Kind{server.KindRedis, server.KindValkey}[i%2]
		s := server.StartFor(t, kind, server.WithClock())
		c.servers = append(c.servers, s)
		c.proxies = append(c.proxies, fault.NewProxy(t, s.Addr()))
	}
	return c
}

// view opens a quorum of all five nodes whose client reaches only the nodes in sight, for
// example "ABC".
func (c *cluster) view(sight string, m redlock.Mutation) *redlock.Backend {
	c.t.Helper()
	return c.viewWith(sight, m, calm)
}

func (c *cluster) viewWith(sight string, m redlock.Mutation, options ...string) *redlock.Backend {
	c.t.Helper()
	b := c.guarded(sight, "off", options...)
	redlock.Sabotage(b, m)
	return b
}

// guarded opens a view with a restart guard.
func (c *cluster) guarded(sight, guard string, options ...string) *redlock.Backend {
	c.t.Helper()
	return c.openURL(c.viewURL(sight, guard, options...))
}

// tryGuarded is guarded, but returns an error instead of failing the test.
func (c *cluster) tryGuarded(sight, guard string, options ...string) (*redlock.Backend, error) {
	c.t.Helper()
	b, err := dlock.OpenBackend(c.viewURL(sight, guard, options...))
	if err != nil {
		return nil, err
	}
	c.t.Cleanup(func() { _ = b.Close() })
	return b.(*redlock.Backend), nil
}

func (c *cluster) viewURL(sight, guard string, options ...string) string {
	c.t.Helper()
	for i, p := range c.proxies {
		if !inSight(sight, i) {
			if err := p.Refuse(); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	url := c.urlThrough(func(i int) bool { return !inSight(sight, i) }, options...)
	return strings.Replace(url, "restart_guard=off", "restart_guard="+guard, 1)
}

// sight returns the names of node i and of the nodes that follow it at these distances, cyclically.
func (c *cluster) sight(i int, others ...int) string {
	sight := string(rune('A' + i))
	for _, o := range others {
		sight += string(rune('A' + (i+o)%len(c.servers)))
	}
	return sight
}

// bootstrap states that the servers are new, as they are. If an answer does not come in time,
// some of them may have been told, and are no longer new: all forget everything.
func (c *cluster) bootstrap(guard string, options ...string) {
	c.t.Helper()
	q := c.guarded("ABCDE"[:len(c.servers)], guard, options...)
	for try := 1; ; try++ {
		_, err := q.Bootstrap(context.Background(), &quorum.Bootstrap{})
		if err == nil {
			return
		}
		if c.t.Log(err); try == 10 {
			c.t.Fatal("the servers could not be told that they are new")
		}
		for _, s := range c.servers {
			if _, err := s.Do("FLUSHALL"); err != nil {
				c.t.Log(err)
			}
		}
	}
}

func inSight(sight string, i int) bool { return strings.ContainsRune(sight, rune('A'+i)) }

// setClock sets the clock of one server, and sets it right at the end of the test.
func (c *cluster) setClock(i int, ahead time.Duration) {
	c.t.Helper()
	if err := c.servers[i].SetClock(ahead); err != nil {
		c.t.Fatal(err)
	}
}

var clockError = regexp.MustCompile(`its clock is (\S+) (ahead of|behind) the others`)

// offset returns the clock error that an error states for a node; zero: none.
func offset(err error, way string) time.Duration {
	if err == nil {
		return 0
	}
	m := clockError.FindStringSubmatch(err.Error())
	if m == nil || m[2] != way {
		return 0
	}
	d, err := time.ParseDuration(m[1])
	if err != nil {
		return 0
	}
	return d
}

// The clock of one of five nodes is stepped by ±1 s to ±1 h while clients compete, and later
// stepped back. Half of the clients reach only three of the nodes, the others only the other
// two and the one whose clock steps, because the failure needs such a partition. Two leases of
// a key are never valid at the same time; if clocks need not agree, some are. The order of the
// tokens needs no clock, and holds in both cases.
//
// No lease here lasts from one step to the next, because an unseen step there and back remains
// a danger.
func TestAClockThatStepsMakesNoSecondHolder(t *testing.T) {
	long(t)
	t.Parallel()
	trials := cmp.Or(*clockTrials, redlock.Amount(20, 100))
	if redlock.Race {
		trials /= 3
	}
	c := five(t)
	began := time.Now()
	r := c.stepping(0)
	for r.more(trials, began) {
		r.thereAndBack()
	}
	t.Logf("%d steps in %v, %d of them with a lease that outlived the step: %d grants, %d of them after it, %d renewals",
		r.trials, time.Since(began).Round(time.Millisecond), r.counted, r.grants, r.late, r.renewals)
	if len(r.overlaps) > 0 {
		t.Errorf("two holders: %v", r.overlaps)
	}
	if r.counted == 0 {
		t.Error("no lease outlived the step of a clock: nothing was shown")
	}

	began = time.Now()
	off := c.stepping(redlock.NoClockCheck)
	for off.trials < 20 || len(off.overlaps) == 0 && time.Since(began) < unprotected {
		off.thereAndBack()
	}
	off.happened("the agreement of clocks")
}

// A clock jumps ahead and back during a lease. It agrees with the others again, but the keys
// that it ended are gone. If the node had a request in between, it has noted that its clock was
// ahead, and does not vote until every lease that it may have ended early has ended everywhere.
//
// A jump without a request in between remains a danger, because the node cannot notice it.
func TestAClockThatJumpsThereAndBack(t *testing.T) {
	long(t)
	t.Parallel()
	for _, on := range []bool{true, false} {
		t.Run(defence(on), func(t *testing.T) {
			c := five(t)
			guard := "off"
			if on {
				guard = "30s"
				c.bootstrap(guard)
			}
			one, two := c.guarded("ABC", guard), c.guarded("CDE", guard)
			first := c.whenFree(one, "file", 29*time.Second)
			c.setClock(2, time.Hour)
			for end := time.Now().Add(time.Minute); ; time.Sleep(poll) {
				if l, err := two.Acquire(t.Context(), ask("file", 29*time.Second)); err == nil {
					t.Fatalf("two holders: %+v and %+v", first.Grant(), l.Grant())
				}
				if !on || c.seenAhead(2) {
					break
				}
				if time.Now().After(end) { // every request ended before C could handle it
					t.Fatal("C was not asked while its clock was ahead")
				}
			}
			c.setClock(2, 0)
			if !on {
				wantBoth(t, first, c.whenFree(two, "file", 29*time.Second))
				return
			}
			second, refused, err := c.untilRefused(two, 2, 29*time.Second)
			switch {
			case err == nil:
				t.Fatalf("two holders: %+v and %+v", first.Grant(), second.Grant())
			case refused == nil || !strings.Contains(refused.Error(), "clock"):
				t.Errorf("C was to refuse for its clock, and the error is: %v", err)
			case !time.Now().Add(refused.RetryAfter).After(first.Grant().Expires):
				t.Errorf("C votes again in %v, and client 1 has the lock for %v", refused.RetryAfter, time.Until(first.Grant().Expires))
			}
		})
	}
	t.Run("unseen", func(t *testing.T) {
		c := five(t)
		c.bootstrap("30s")
		one, two := c.guarded("ABC", "30s"), c.guarded("CDE", "30s")
		first := c.whenFree(one, "file", 29*time.Second)
		c.setClock(2, time.Hour)
		for end := time.Now().Add(time.Minute); len(c.keys("file")) > 2; time.Sleep(poll) { // no request of ours
			if time.Now().After(end) {
				t.Fatal("the key does not end")
			}
		}
		c.setClock(2, 0)
		wantBoth(t, first, c.whenFree(two, "file", 29*time.Second))
	})
}

// more reports whether another trial is needed. Trials end at the first overlap, or when enough
// leases outlived a step. On a busy machine leases seldom outlive a step, and fewer are enough.
func (r *stepping) more(trials int, began time.Time) bool {
	return len(r.overlaps) == 0 && r.counted < trials && (r.trials < 2*trials || r.counted == 0 && time.Since(began) < unprotected)
}

// happened fails the test if no leases overlapped without a protection, unless the machine was
// too busy for this.
func (r *stepping) happened(without string) {
	r.t.Helper()
	switch {
	case len(r.overlaps) > 0:
		r.t.Logf("without %s: %d overlaps in %d trials, the first is %v", without, len(r.overlaps), r.trials, r.overlaps[0])
	case r.counted < 20, 2*r.counted < r.trials, r.grants < 4*r.trials: // on a quiet machine a lease outlives the steps in two of three trials, and there are eight grants in each
		r.t.Logf("without %s nothing went wrong, but the machine is too busy for this test: in %d trials a lease outlived the steps in %d, and there were %d grants", without, r.trials, r.counted, r.grants)
	default:
		r.t.Errorf("without %s nothing went wrong in %d trials; in %d of them a lease outlived the steps", without, r.trials, r.counted)
	}
}

// seenAhead reports whether node i has noted that its clock was ahead. A node notes that only
// in a request that is in time by its clock, so clients must have learned that clock before.
func (c *cluster) seenAhead(i int) bool {
	c.t.Helper()
	reply, err := c.servers[i].Do("GET", "redlock1:meta")
	if err != nil {
		c.t.Fatal(err)
	}
	return time.Until(highOf(c.t, fmt.Sprint(reply))) > 30*time.Minute
}

// highOf returns the high-water mark in a node's memory.
func highOf(t testing.TB, meta string) time.Time {
	t.Helper()
	words := strings.Fields(meta)
	if len(words) < 5 {
		t.Fatalf("meta is %q", meta)
	}
	high, err := strconv.ParseInt(words[3], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.UnixMicro(high)
}

// clockStep returns a step of ±1 s to ±1 h, with all orders of magnitude equally likely.
func clockStep() time.Duration {
	d := time.Duration(float64(time.Second) * math.Exp(rand.Float64()*math.Log(3600)))
	if rand.IntN(2) == 0 {
		return -d
	}
	return d
}

// unprotected is how long a test looks for a failure without the protection. On a busy machine
// few of the short leases last long enough.
const unprotected = time.Minute

const (
	stepTTL  = 600 * time.Millisecond // even with its grace shorter than the smallest step
	stepKeys = 8
	// A bid that finds the key free on two of its three nodes and taken on the third would repeat
	// for some rounds. Trying another key is quicker. On a busy machine nobody gets a key so soon;
	// with the most, a lease can still outlast the attempts of a trial.
	minStepPatience = 25 * time.Millisecond
	maxStepPatience = stepTTL / 4
)

// stepping is a test in which clients compete while clocks step.
type stepping struct {
	*cluster
	left, right [5]*redlock.Backend // by the one node that both reach
	all         *redlock.Backend

	patience               time.Duration // of an attempt
	trials, counted        int           // counted: a lease from before the step was valid to the end
	grants, late, renewals int           // late: granted after the step
	overlaps               []string

	mu   sync.Mutex
	keys map[string]*rivalry
}

// rivalry has the leases of one key.
type rivalry struct {
	live    map[driver.Lease]span
	lost    []driver.Lease
	largest uint64 // largest token of the returned leases
}

// span says until when a lease is valid, and whether it was granted before the step.
type span struct {
	expires time.Time
	before  bool
}

func (c *cluster) stepping(m redlock.Mutation) *stepping {
	r := &stepping{cluster: c}
	patient := "node_timeout=" + stepTTL.String()
	for i := range r.left {
		r.left[i], r.right[i] = c.viewWith(c.sight(i, 1, 2), m, patient), c.viewWith(c.sight(i, 3, 4), m, patient)
	}
	r.all = c.viewWith("ABCDE", m, patient)
	return r
}

// thereAndBack runs two trials: one steps a clock, the other steps it back.
func (r *stepping) thereAndBack() {
	i, d := rand.IntN(len(r.servers)), clockStep()
	r.trial(i, 0, d)
	r.trial(i, d, 0)
}

// trial lets clients take keys, steps the clock of node i while they compete, and releases all
// keys.
func (r *stepping) trial(i int, from, to time.Duration) {
	r.t.Helper()
	clients := []*redlock.Backend{r.left[i], r.right[i], r.all}
	r.take(clients)
	r.compete(clients, i, to)
	r.rest(fmt.Sprintf("trial %d, node %c, from %v to %v", r.trials, 'A'+i, from, to))
}

// take lets clients take keys that are free.
func (r *stepping) take(clients []*redlock.Backend) {
	r.trials++
	r.keys = map[string]*rivalry{}
	r.patience = max(r.patience, minStepPatience)
	granted := r.grants
	var every sync.WaitGroup
	for k := range stepKeys {
		key := fmt.Sprintf("trial/%d/%d", owners.Add(1), k)
		r.keys[key] = &rivalry{live: map[driver.Lease]span{}}
	}
	next := 0
	for key, k := range r.keys {
		for i := range 1 + next%2 { // every other key has two bidders from the start
			b := clients[(next/2+i)%len(clients)]
			every.Go(func() { r.acquire(b, key, k, true) })
		}
		next++
	}
	every.Wait()
	if r.grants == granted {
		r.patience = min(2*r.patience, maxStepPatience)
	}
}

// compete lets clients ask for held keys, and renew theirs, while the clock of node i is
// stepped.
func (r *stepping) compete(clients []*redlock.Backend, i int, to time.Duration) {
	r.t.Helper()
	stepped := make(chan struct{})
	var every sync.WaitGroup
	for key, k := range r.keys {
		for _, b := range clients {
			every.Go(func() {
				r.acquire(b, key, k, false)
				<-stepped
				r.acquire(b, key, k, false)
				r.renew(k)
			})
		}
	}
	time.Sleep(rand.N(3 * time.Millisecond)) // so that the step comes at any moment
	r.setClock(i, to)
	close(stepped)
	every.Wait()
}

// rest releases all leases. It counts the trial if a lease from before the step is still valid.
func (r *stepping) rest(what string) {
	outlived := false
	for n := range r.overlaps {
		if !strings.Contains(r.overlaps[n], "trial") {
			r.overlaps[n] += " in " + what
		}
	}
	for _, k := range r.keys {
		for l, s := range k.live {
			outlived = outlived || s.before && time.Now().Before(s.expires)
			k.lost = append(k.lost, l)
		}
		for _, l := range k.lost {
			if err := l.Release(r.t.Context()); err != nil && !errors.Is(err, driver.ErrLost) {
				r.t.Logf("%s: a release failed: %v", what, err) // it ends with its TTL
			}
		}
	}
	if outlived {
		r.counted++
	}
}

// acquire makes one attempt.
func (r *stepping) acquire(b *redlock.Backend, key string, k *rivalry, before bool) {
	r.mu.Lock()
	largest := k.largest
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(r.t.Context(), r.patience)
	defer cancel()
	l, err := b.Acquire(ctx, ask(key, stepTTL))
	if err != nil {
		return
	}
	g := l.Grant()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.grants++
	if !before {
		r.late++
	}
	if g.Fence <= largest {
		r.t.Errorf("token %d after %d", g.Fence, largest)
	}
	k.largest = max(k.largest, g.Fence)
	r.valid(k, l, span{g.Expires, before})
}

// renew renews the current lease of the key.
func (r *stepping) renew(k *rivalry) {
	r.mu.Lock()
	var l driver.Lease
	var s span
	for l, s = range k.live {
		break
	}
	r.mu.Unlock()
	if l == nil {
		return
	}
	g, err := l.Renew(r.t.Context(), &driver.Renewal{TTL: stepTTL})
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case errors.Is(err, driver.ErrLost):
		delete(k.live, l) // the lease counts as valid until here
		k.lost = append(k.lost, l)
		return
	case err != nil:
		return // the lease stays valid until its deadline
	}
	r.renewals++
	r.valid(k, l, span{g.Expires, s.before})
}

// valid notes that a lease is valid from now on, and records an overlap if another one is. The
// caller holds r.mu.
func (r *stepping) valid(k *rivalry, l driver.Lease, s span) {
	k.live[l] = s
	now := time.Now()
	for other, its := range k.live {
		if other != l && now.Before(its.expires) && now.Before(s.expires) {
			r.overlaps = append(r.overlaps, fmt.Sprintf("tokens %d and %d, for %v",
				l.Grant().Fence, other.Grant().Fence, min(s.expires.Sub(now), its.expires.Sub(now)).Round(time.Millisecond)))
		}
	}
}
