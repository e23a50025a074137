package redlocktest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// StressOptions say how hard a stress is. The zero value is for a test among others: some
// thousand calls.
type StressOptions struct {
	// Duration is how long the stress goes on, and Operations after how many calls it ends,
	// whichever comes first; zero: no such limit, or 5,000 calls if both are zero (1,500 if
	// Harness.Short). A stress that has proved too little by then goes on, for at most 30 s after
	// Duration and to at most 40 times Operations. Without Duration it is a failure if the
	// calls take more than ten minutes.
	Duration   time.Duration
	Operations int64
	// Keys is how many keys are in use at a time, Clients how many backends of this process
	// use them, and Workers how many goroutines; zero: 4, 5 and 16.
	Keys, Clients, Workers int
	// Processes is how many of the clients run in processes of their own, which the stress
	// kills and stops. It needs Harness.Process. Zero: none, or 2 if there is Harness.Process.
	// Less than zero: none.
	Processes int
	// Seed is the seed of the random choices; zero: a random seed, or the value of the
	// environment variable REDLOCKTEST_SEED. The same seed makes the same choices, but the
	// machine's timing differs.
	Seed uint64
	// Progress is called about once a second.
	Progress func(StressReport)

	_ struct{}
}

// A StressReport is the result of a stress.
type StressReport struct {
	Seed       uint64        `json:"seed"`
	Took       time.Duration `json:"nanoseconds"`
	Operations int64         `json:"operations"`
	Keys       int64         `json:"keys"`
	Grants     int64         `json:"grants"`
	Shared     int64         `json:"shared"`   // grants in the shared mode
	Refusals   int64         `json:"refusals"` // as held
	Unknown    int64         `json:"unknown"`  // calls without an answer
	Losses     int64         `json:"losses"`   // leases that had ended when they were released or renewed
	Faults     []FaultCount  `json:"faults"`
	Failures   []*Failure    `json:"failures"`
	_          struct{}
}

// A FaultCount is how often a fault was injected, and how often a call that was made into it shows
// its effect: it failed, or took long. A driver may hide a lost reply or a broken connection by
// repeating the call.
type FaultCount struct {
	Name      string `json:"name"`
	Injected  int    `json:"injected"`
	Effective int    `json:"effective"`
	hidden    bool   // a driver may hide it
	_         struct{}
}

// Stress lets many clients use few keys in every way that the contract has, while it injects
// the harness's faults, and checks the record of their calls:
//
//   - No two leases overlap, from the grant to the call of Release or to the lease's end.
//   - Tokens rise: a grant that was requested after another grant's answer has the larger token.
//   - For each key some order of all calls explains every answer (linearizability, by
//     porcupine): no reader beside a writer, a writer's token above all before it, a reader's
//     above all writers' before it. A session may have ended by a fault, or in a process, which
//     tells it by Grant.Lost, for any reason. A lease that servers forgot ([Faults].Forget) may be lost
//     early, from then until its client is told; nobody else may have the lock before that.
//   - A Lookup of a key that is held for the whole time of the call sees its holder.
//
// If the backend has the shared mode, every second key has readers: a share of the attempts that
// is drawn for the key.
//
// A record that the checker cannot decide is a failure. So is one that proves nothing: too
// little contention, or faults without an effect. No call fails because it took long. A
// failure shows the shortest part of the record that breaks the rule, in words, and names the
// file that has all of it, and the seed.
func Stress(t *testing.T, h Harness, o StressOptions) {
	t.Helper()
	h.Short = h.Short || testing.Short()
	ctx, cancel := t.Context(), context.CancelFunc(func() {})
	if end := timeOf(t); !end.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, end)
	}
	defer cancel()
	report, err := ExamineStress(ctx, h, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report)
	for _, f := range report.Failures {
		t.Error(f)
	}
}

// String returns the figures in a line.
func (r *StressReport) String() string {
	var faults []string
	for _, f := range r.Faults {
		faults = append(faults, fmt.Sprintf("%d × %s of which %d had an effect", f.Injected, f.Name, f.Effective))
	}
	text := fmt.Sprintf("%d operations in %.1f s on %d keys: %d granted (%d shared), %d refused, %d without an answer, %d leases lost; seed %d",
		r.Operations, r.Took.Seconds(), r.Keys, r.Grants, r.Shared, r.Refusals, r.Unknown, r.Losses, r.Seed)
	if len(faults) > 0 {
		text += "; faults: " + strings.Join(faults, ", ")
	}
	return text
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// complete returns o with its defaults.
func (o StressOptions) complete(h *Harness) (StressOptions, error) {
	if text := os.Getenv("REDLOCKTEST_SEED"); text != "" && o.Seed == 0 {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return o, fmt.Errorf("redlocktest: REDLOCKTEST_SEED is %q: must be a number", text)
		}
		o.Seed = seed
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	if o.Duration == 0 && o.Operations == 0 {
		o.Operations = 5000
		if h.Short {
			o.Operations = 1500
		}
	}
	o.Keys, o.Clients, o.Workers = cmp.Or(o.Keys, 4), cmp.Or(o.Clients, 5), cmp.Or(o.Workers, 16)
	switch {
	case o.Processes > 0 && h.Process == nil:
		return o, errors.New("redlocktest: StressOptions.Processes needs Harness.Process")
	case o.Processes == 0 && h.Process != nil && !h.Virtual:
		o.Processes = 2
	case o.Processes < 0:
		o.Processes = 0
	}
	if o.Keys < 0 || o.Clients < 1 || o.Workers < 1 || o.Duration < 0 || o.Operations < 0 {
		return o, errors.New("redlocktest: StressOptions has a number below zero")
	}
	return o, nil
}

// unhurried is how long a stress of a number of calls may take.
const unhurried = 10 * time.Minute

// ExamineStress is Stress without a testing.T. If ctx ends, the stress ends too, and the record
// so far is checked. The error says that h or o is invalid, or that no backend can be opened; a
// failure of the backend is no error.
func ExamineStress(ctx context.Context, h Harness, o StressOptions) (*StressReport, error) {
	o, err := o.complete(&h)
	if err != nil {
		return nil, err
	}
	limit := cmp.Or(o.Duration, unhurried)
	h.Timeout = (limit + max(h.Timeout, defaultTimeout)) * 4 / 3
	s, err := newSuite(h)
	if err != nil {
		return nil, err
	}
	st := &stress{o: o, outer: ctx, limit: limit}
	r := s.attempt("stress", testCase{name: "stress", do: st.do}, 1)
	if r.startOverReason != "" && len(r.failures) == 0 {
		r.recordAt("the stress", nothingShown, "%s", r.startOverReason)
	}
	report := st.report()
	report.Failures = r.failures
	return report, nil
}

// stress is one run.
type stress struct {
	*run
	o     StressOptions
	outer context.Context // of the caller
	limit time.Duration

	start   time.Time
	clock   atomic.Int64 // the last instant that now returned
	clients []*stressClient
	who     atomic.Int64
	hold    atomic.Int64 // how long locks are held, about
	slow    atomic.Int64 // workers that wait for the end of a TTL
	spoils  atomic.Bool  // there are faults to inject that are not rare
	found   atomic.Bool  // a failure: workers begin no more calls
	quorum  atomic.Bool

	ops, keys, grants, shared, refusals, unknowns, losses, attempts atomic.Int64

	mu     sync.Mutex
	live   []*stressKey
	faults []*stressFault
	took   time.Duration
}

// stressClient is a backend in this process, or in a separate process.
type stressClient struct {
	id     int
	remote bool
	mu     sync.Mutex
	b      driver.Backend
}

func (c *stressClient) backend() driver.Backend {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b
}

// now returns the time since the start, in nanoseconds, and no instant twice.
func (s *stress) now() int64 {
	for {
		last := s.clock.Load()
		next := max(int64(time.Since(s.start)), last+1)
		if s.clock.CompareAndSwap(last, next) {
			return next
		}
	}
}

// do runs the stress.
func (s *stress) do(r *run) {
	s.run, s.start = r, time.Now()
	s.connect()
	s.hold.Store(int64(max(50*time.Microsecond, min(s.howLong(s.clients[0].b), s.longestHold()))))
	s.start = time.Now()
	first := rand.New(rand.NewPCG(s.o.Seed, math.MaxUint64))
	for range s.o.Keys {
		s.live = append(s.live, s.newKey(first))
	}
	over := make(chan struct{})
	var beside sync.WaitGroup
	beside.Go(func() { defer r.recoverPanic(); s.spoil(over) })
	beside.Go(func() { defer r.recoverPanic(); s.tellProgress(over) })
	var workers sync.WaitGroup
	for i := range s.o.Workers {
		workers.Go(func() {
			defer r.recoverPanic()
			w := &stressWorker{stress: s, rng: rand.New(rand.NewPCG(s.o.Seed, uint64(i))), client: s.clients[i%len(s.clients)]}
			for !s.done() {
				w.turn(w.enter())
			}
		})
	}
	workers.Wait()
	close(over)
	beside.Wait()
	s.endFaults()
	for _, k := range s.live {
		s.judge(k)
	}
	s.took = time.Since(s.start)
	s.showsSomething()
}

// connect opens the clients.
func (s *stress) connect() {
	for i := range max(1, s.o.Clients-s.o.Processes) {
		c := &stressClient{id: i}
		if i == 1 && s.h.OpenWithClock != nil {
			b, err := s.h.OpenWithClock(time.Hour)
			s.must(err, "open a backend with a clock")
			s.keep(b)
			c.b = b
		} else if i == 0 {
			c.b = s.client()
		} else {
			c.b = s.open()
		}
		s.clients = append(s.clients, c)
	}
	for range s.o.Processes {
		c := &stressClient{id: len(s.clients), remote: true}
		s.startProcess(c)
		s.clients = append(s.clients, c)
	}
}

// startProcess gives a client a new process.
func (s *stress) startProcess(c *stressClient) {
	b, err := s.run.startProcess(rand.NewPCG(s.o.Seed, uint64(s.processes.Load())).Uint64())
	if err != nil {
		s.record(nothingShown, "the harness could not start a process: %v", err)
		s.found.Store(true)
		if c.b == nil {
			runtime.Goexit()
		}
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.b = b
}

// longestHold bounds how long a lock is held.
func (s *stress) longestHold() time.Duration {
	if ttl := s.short(); ttl > 0 {
		return ttl / 8
	}
	return 50 * time.Millisecond
}

// done reports whether the stress is over: then workers begin no more calls. A stress that has
// proved too little goes on for a while.
func (s *stress) done() bool {
	if s.found.Load() || s.over() || s.outer.Err() != nil || s.ctx.Err() != nil {
		return true
	}
	ops, most, took := s.ops.Load(), s.o.Operations, time.Since(s.start)
	switch {
	case most > 0 && ops >= 40*most, took >= s.limit+30*time.Second:
		return true
	case most > 0 && ops >= most, took >= s.limit:
		why, never := s.lacking()
		return why == "" || never
	}
	return false
}

// lacking says what the run must still have to prove something; empty: nothing. never says that
// it cannot come.
func (s *stress) lacking() (why string, hopeless bool) {
	// A call without an answer is explained by anything.
	if s.unanswered(3) {
		return fmt.Sprintf("too few answers: %d of %d calls had none", s.unknowns.Load(), s.ops.Load()), false
	}
	attempts, refusals := s.attempts.Load(), s.refusals.Load()
	if least := max(attempts/50, 1); attempts < 20 || refusals < least {
		return fmt.Sprintf("too little contention: %d of %d attempts were refused as held, fewer than %d", refusals, attempts, least), false
	}
	if !s.spoils.Load() {
		return "", false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return withoutEffect(s.faultCounts())
}

// unanswered reports whether less than one call in so many had an answer.
func (s *stress) unanswered(n int64) bool { return s.unknowns.Load() > s.ops.Load()*(n-1)/n }

func (s *stress) tellProgress(over <-chan struct{}) {
	if s.o.Progress == nil {
		return
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return
		case <-tick.C:
			s.o.Progress(*s.report())
		}
	}
}

// report returns the figures so far.
func (s *stress) report() *StressReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	took := s.took
	if took == 0 {
		took = time.Since(s.start)
	}
	return &StressReport{Seed: s.o.Seed, Took: took, Operations: s.ops.Load(), Keys: s.keys.Load(), Grants: s.grants.Load(),
		Shared: s.shared.Load(), Refusals: s.refusals.Load(), Unknown: s.unknowns.Load(), Losses: s.losses.Load(), Faults: s.faultCounts()}
}

// showsSomething fails a run that proves nothing.
func (s *stress) showsSomething() {
	if s.over() || s.outer.Err() != nil {
		return
	}
	why, _ := s.lacking()
	n := s.ops.Load()
	if s.o.Duration == 0 && n < s.o.Operations {
		why = fmt.Sprintf("only %d of %d calls were made within %v", n, s.o.Operations, s.took)
	}
	if why != "" {
		s.record(nothingShown, "%s", why)
	}
}
