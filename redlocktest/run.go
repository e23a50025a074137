package redlocktest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// run is the argument of a case: the harness, a context that ends before the watchdog acts, and
// a place for failures. Goroutines that a case starts with together may call its methods.
type run struct {
	suite *suite
	h     *Harness
	name  string
	ctx   context.Context
	stop  context.CancelFunc
	scale int           // factor of all TTLs
	limit time.Duration // of the case
	info  driver.Info
	wg    sync.WaitGroup // what async began

	processes atomic.Int64 // that were started

	mu              sync.Mutex
	failures        []*Failure
	notes           []string
	passed          bool   // ended by pass
	startOverReason string // the case could not decide: begin again
	suspected       *Failure
	closedLate      bool // the last Close under calls took long
	late            bool // a failure came when the case's time was over
	ended           bool // later findings of its goroutines are ignored
	abandoned       bool
	backends        []driver.Backend
	leases          []*lease
	cleanups        []func()        // end the faults
	inDoubt         map[string]bool // keys with an attempt whose outcome is unknown
}

// begin opens a first backend, and runs the case.
func (r *run) begin(c testCase) {
	r.info = r.open().Info()
	c.do(r)
}

// end waits for the goroutines of a case that is over, even if it ended early.
func (r *run) end() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.stop()
	r.wg.Wait()
}

// recoverPanic turns a panic into a failure.
func (r *run) recoverPanic() {
	if p := recover(); p != nil {
		r.recordAt("a panic", acquiring, "panicked: %v\n%s", p, debug.Stack())
	}
}

// record notes a failure, and where in the case it was found.
func (r *run) record(broken rule, format string, args ...any) {
	r.mu.Lock()
	ended := r.ended
	r.mu.Unlock()
	if ended {
		return
	}
	r.recordAt(position(), broken, format, args...)
}

func (r *run) recordAt(pos string, broken rule, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := &Failure{Case: r.name, Rule: string(broken), Pos: pos, Text: fmt.Sprintf(format, args...)}
	r.failures = append(r.failures, f)
	r.late = r.late || errors.Is(r.ctx.Err(), context.DeadlineExceeded)
	if r.h.told != nil {
		r.h.told(f)
	}
}

// fatal notes a failure and ends the case.
func (r *run) fatal(broken rule, format string, args ...any) {
	r.record(broken, format, args...)
	runtime.Goexit()
}

// must ends the case if the harness could not do something.
func (r *run) must(err error, do string) {
	if err != nil {
		r.fatal(nothingShown, "the harness could not %s: %v", do, err)
	}
}

// pass ends the case: there is nothing left to check.
func (r *run) pass(format string, args ...any) {
	r.note(format, args...)
	r.mu.Lock()
	r.passed = true
	r.mu.Unlock()
	runtime.Goexit()
}

// suspect ends the case with a possible failure, which may also come from a machine that stood
// still. It counts as a failure if it is found again with longer TTLs.
func (r *run) suspect(broken rule, format string, args ...any) {
	pos := position()
	r.mu.Lock()
	r.suspected = &Failure{Case: r.name, Rule: string(broken), Pos: pos, Text: fmt.Sprintf(format, args...)}
	r.startOverReason = r.suspected.Text
	r.mu.Unlock()
	runtime.Goexit()
}

// stays ends the case because something is left that should be undone. After a Close that took long it is
// a suspicion: the backend may have given up a server that answered late.
func (r *run) stays(broken rule, format string, args ...any) {
	if r.closedLate {
		r.suspect(broken, format, args...)
	}
	r.fatal(broken, format, args...)
}

// misstated ends the case because a state is wrong. That of a quorum may lack a holder, and its counter
// be low, if one of its nodes did not answer, as on a busy machine: then it is a suspicion.
func (r *run) misstated(s *driver.State, format string, args ...any) {
	for _, n := range s.Nodes {
		if n.Err != "" {
			r.suspect(inspecting, format, args...)
		}
	}
	r.fatal(inspecting, format, args...)
}

// startOver ends the case without a result: too much time passed, and a lease ended as it
// should. The suite begins the case anew.
func (r *run) startOver(format string, args ...any) {
	r.mu.Lock()
	r.startOverReason = fmt.Sprintf(format, args...)
	r.mu.Unlock()
	runtime.Goexit()
}

// note records an observation that is not a failure, but may explain one.
func (r *run) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.notes) < 20 {
		r.notes = append(r.notes, fmt.Sprintf(format, args...))
	}
}

// over reports whether the case was ended by one of its goroutines.
func (r *run) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures) > 0 || r.startOverReason != "" || r.passed
}

// position returns the file and line of the failed assertion: the first caller outside the
// files with functions that all cases use.
func position() string {
	pcs := make([]uintptr, 16)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		switch file := filepath.Base(f.File); file {
		case "run.go", "attempt.go", "terms.go", "lock.go":
		default:
			return fmt.Sprintf("redlocktest/%s:%d", file, f.Line)
		}
		if !more {
			return "unknown"
		}
	}
}

// together runs f n times at once and returns when all have returned. If one ended
// the case, it ends here.
func (r *run) together(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			defer r.recoverPanic()
			f(i)
		})
	}
	wg.Wait()
	if r.over() {
		runtime.Goexit()
	}
}

// async runs f in the background and returns a channel that is closed after it.
func (r *run) async(f func()) <-chan struct{} {
	done := make(chan struct{})
	r.wg.Go(func() {
		defer close(done)
		defer r.recoverPanic()
		f()
	})
	return done
}

// join waits for goroutines that async started; if that ended the case, it ends here.
func (r *run) join(done <-chan struct{}) {
	<-done
	if r.over() {
		runtime.Goexit()
	}
}

// await returns when done is closed. If the case's time is over before, the rule is broken.
func (r *run) await(done <-chan struct{}, broken rule, what string) {
	select {
	case <-done:
	case <-r.ctx.Done():
		r.fatal(broken, "%s", what)
	}
}

// rounds counts from zero to n, and no further when half of the case's time is over: a busy machine
// makes fewer rounds.
func (r *run) rounds(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range n {
			if i > 0 && r.left() < r.limit*3/8 || !yield(i) {
				return
			}
		}
	}
}

// pause waits for d, and reports false if the case's time is over.
func (r *run) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.ctx.Done():
		return false
	}
}

// left returns how much of the case's time is left.
func (r *run) left() time.Duration {
	end, _ := r.ctx.Deadline()
	return time.Until(end)
}

// latest returns the verdict to tell when the case's time is over: last, if err only says that.
func (r *run) latest(last, err error) error {
	if last != nil && errors.Is(err, context.DeadlineExceeded) && r.left() <= 0 {
		return last
	}
	return err
}

// open returns another client of the lock space. It is closed after the case.
func (r *run) open() driver.Backend {
	b, err := r.h.Open()
	r.must(err, "open a backend")
	r.keep(b)
	return b
}

// keep closes a client after the case.
func (r *run) keep(b driver.Backend) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.backends = append(r.backends, b)
}

// close closes a client, which must succeed.
func (r *run) close(b driver.Backend) {
	if err := b.Close(); err != nil {
		r.record(closing, "Close gives %v", err)
	}
}

// clients returns n clients, the first of which is the one that begin opened.
func (r *run) clients(n int) []driver.Backend {
	for len(r.opened()) < n {
		r.open()
	}
	return r.opened()[:n]
}

func (r *run) opened() []driver.Backend {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.backends
}

// pair returns two clients.
func (r *run) pair() (a, b driver.Backend) {
	c := r.clients(2)
	return c[0], c[1]
}

// client returns the case's first client.
func (r *run) client() driver.Backend { return r.clients(1)[0] }

func (r *run) track(l *lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leases = append(r.leases, l)
}

// cleanUp releases the case's leases and closes its clients, within a bounded time.
func (r *run) cleanUp() {
	r.endFaults()
	r.within(2*r.h.cleanupTimeout(), releasing, "Release", func() {
		ctx, cancel := context.WithTimeout(context.Background(), r.h.cleanupTimeout())
		defer cancel()
		r.releaseAll(ctx)
	})
	r.closeAll()
}

// within runs a clean-up, and waits at most this long for it.
func (r *run) within(most time.Duration, broken rule, what string, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(most):
		r.recordAt("the end of the case", broken, "%s hangs for %v; the goroutines are:\n%s", what, most, stacks())
	}
}

// endFaults ends every fault that the case began and did not end itself.
func (r *run) endFaults() {
	r.mu.Lock()
	ends := r.cleanups
	r.mu.Unlock()
	for _, end := range ends {
		end()
	}
}

// releaseAll tries to release every lease, all at once: after a failed case some locks may have
// other owners, and errors mean nothing.
func (r *run) releaseAll(ctx context.Context) {
	var wg sync.WaitGroup
	for _, l := range r.leases {
		wg.Go(func() {
			defer r.recoverPanic()
			_ = l.Release(ctx)
		})
	}
	wg.Wait()
}

func (r *run) closeAll() {
	r.within(r.h.cleanupTimeout(), closing, "Close", func() {
		for _, b := range r.opened() {
			_ = b.Close()
			if err := r.h.closed(b); err != nil {
				r.recordAt("the end of the case", nothingShown, "%v", err)
			}
		}
	})
}

// snapshot returns a copy of the results that an abandoned case cannot change.
func (r *run) snapshot() *run {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &run{name: r.name, abandoned: true, late: r.late, failures: r.failures[:len(r.failures):len(r.failures)]}
}

// key returns a fresh key that nobody can guess.
func (r *run) key() string { return r.keys() + rand.Text() }

// keys returns the beginning of all keys of the case.
func (r *run) keys() string { return "redlocktest/" + r.name + "/" }

// owner returns an owner that nobody else has.
func (r *run) owner() string { return ownerLabel + strings.ToLower(rand.Text()) }

const ownerLabel = "redlocktest/"

// long returns a TTL that is longer than any case.
func (r *run) long() time.Duration {
	if r.info.MaxTTL == 0 {
		return 0
	}
	return min(r.info.MaxTTL, max(2*r.h.Timeout, 2*r.limit, r.info.MinTTL))
}

// short returns a TTL whose end a case waits for.
func (r *run) short() time.Duration {
	return min(r.info.MaxTTL, r.suite.ttl()*time.Duration(r.scale))
}

// verdict is the meaning of an error.
type verdict int

const (
	granted verdict = iota
	held
	lost
	later   // refused, for now
	refused // permanently
	invalid
	closed
	unknown
)

func (v verdict) String() string {
	return [...]string{"no error", "ErrHeld", "ErrLost", "a timed refusal", "a refusal", "ErrInvalid", "ErrClosed", "an unknown outcome"}[v]
}

// saw classifies an error of the backend under test, and searches it for the password.
func (r *run) saw(err error) verdict {
	if err != nil && r.h.Secret != "" && strings.Contains(fmt.Sprintf("%v %+v", err, err), r.h.Secret) {
		r.record(noPassword, "an error of type %T holds the password", err)
	}
	return classify(err)
}

// classify returns the verdict of err.
func classify(err error) verdict {
	var no *driver.RefusedError
	switch {
	case err == nil:
		return granted
	case errors.Is(err, driver.ErrHeld):
		return held
	case errors.Is(err, driver.ErrLost):
		return lost
	case errors.As(err, &no) && no.RetryAfter > 0:
		return later
	case errors.Is(err, driver.ErrRefused):
		return refused
	case errors.Is(err, driver.ErrInvalid):
		return invalid
	case errors.Is(err, driver.ErrClosed):
		return closed
	}
	return unknown
}
