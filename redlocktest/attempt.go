package redlocktest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// poll is the pause between two attempts of a case that waits for something.
const poll = 3 * time.Millisecond

// fill completes a request with a new owner and a TTL that is longer than the case.
func (r *run) fill(req driver.Request) *driver.Request {
	if req.Owner == "" {
		req.Owner = r.owner()
	}
	if req.TTL == 0 {
		req.TTL = r.long()
	}
	return &req
}

// try makes one attempt.
func (r *run) try(b driver.Backend, req driver.Request) (*lease, error) {
	return r.tryCtx(r.ctx, b, req)
}

func (r *run) tryCtx(ctx context.Context, b driver.Backend, req driver.Request) (*lease, error) {
	return r.tryRequest(ctx, b, r.fill(req))
}

func (r *run) tryRequest(ctx context.Context, b driver.Backend, req *driver.Request) (*lease, error) {
	terms := termsOf(req)
	got, err := b.Acquire(ctx, req)
	terms.received = time.Now()
	switch {
	case err == nil && got == nil:
		r.fatal(acquiring, "Acquire returned neither a lease nor an error")
	case err == nil:
		l := &lease{Lease: got, first: terms, terms: terms}
		r.track(l)
		return l, nil
	case got != nil:
		r.record(acquiring, "Acquire returned a lease beside the error %v", err)
	}
	if classify(err) == unknown {
		r.mu.Lock()
		if r.inDoubt == nil {
			r.inDoubt = map[string]bool{}
		}
		r.inDoubt[req.Key] = true
		r.mu.Unlock()
	}
	return nil, err
}

// doubtful reports whether an earlier attempt of the case may still have key, because its
// clean-up is not over.
func (r *run) doubtful(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.inDoubt[key]
}

// grant acquires a free key: a refusal is a failure. After an unknown outcome, which networks
// cause, it tries again.
//
// A driver bounds an attempt by its TTL, so that on a busy machine none with a short TTL may be
// answered: then the case begins anew with longer ones.
func (r *run) grant(b driver.Backend, req driver.Request) *lease {
	const unansweredMost = 10
	busy, unanswered := false, 0
	var last error
	for {
		l, err := r.try(b, req)
		last = r.latest(last, err)
		v := r.saw(err)
		switch {
		case v == granted:
			return l
		case v == held && !busy && !r.doubtful(req.Key):
			r.fatal(fourOutcomes, "key %q is free, and yet Acquire says %v", short(req.Key), err)
		case v != held && v != later && v != unknown:
			r.fatal(fourOutcomes, "key %q is free, and yet Acquire gives %v: %v", short(req.Key), v, err)
		case v == unknown && req.Owner != "": // its clean-up would undo the next grant, too
			r.startOver("the outcome of an attempt is unknown, and the case uses its owner again")
		}
		busy = busy || v == later
		if v == unknown && req.TTL != 0 && r.scale < 1<<(maxRestarts-1) {
			if unanswered++; unanswered == unansweredMost {
				r.startOver("no attempt with a TTL of %v was answered: %v", req.TTL, err)
			}
		}
		r.note("Acquire gave %v: %v", v, err)
		if !r.pause(poll) {
			r.fatal(acquiring, "key %q is free, and was not granted before the case's time was over; the last verdict: %v", short(req.Key), last)
		}
	}
}

// holding returns two clients, and a lease that the first has, of a key of its own.
func (r *run) holding(req driver.Request) (a, b driver.Backend, key string, l *lease) {
	a, b = r.pair()
	req.Key = r.key()
	return a, b, req.Key, r.grant(a, req)
}

// takes acquires a key that must be free. If it is held, the rule is broken, in these words.
func (r *run) takes(broken rule, b driver.Backend, key, format string, args ...any) *lease {
	l, err := r.try(b, driver.Request{Key: key})
	if r.saw(err) == held {
		r.fatal(broken, format+": %v", append(args, err)...)
	}
	if err != nil {
		l = r.grant(b, driver.Request{Key: key})
	}
	return l
}

// again acquires a key whose Release has just returned nil, so that it must be free.
func (r *run) again(b driver.Backend, key string) *lease {
	return r.takes(releasing, b, key, "Release of key %q returned nil, and the next attempt gives", short(key))
}

// eventually acquires a key that becomes free by itself, for example because a clean-up goes on
// in the background.
func (r *run) eventually(b driver.Backend, req driver.Request) *lease {
	l, _ := r.eventuallyRule(undoes, b, req, nil)
	return l
}

// eventuallyRule is eventually, with the rule that is broken if the key does not
// become free, and the lease that must end, if there is one; it also counts the refusals.
func (r *run) eventuallyRule(broken rule, b driver.Backend, req driver.Request, old *lease) (*lease, int) {
	var last error
	for refusals := 0; ; {
		sent := time.Now()
		l, err := r.try(b, req)
		last = r.latest(last, err)
		switch v := r.saw(err); v {
		case granted:
			return l, refusals
		case held:
			refusals++
			if old != nil && !req.Wait {
				r.notKeptAt(sent, req.Key, old)
			}
		case unknown:
			old = nil // from now on the lock may be this attempt's
		case later:
		default:
			r.fatal(fourOutcomes, "Acquire gives %v: %v", v, err)
		}
		if !r.pause(poll) {
			r.stays(broken, "key %q did not become free before the case's time was over; the last verdict: %v", short(req.Key), last)
		}
	}
}

// free asserts that key becomes free, and leaves it free.
func (r *run) free(b driver.Backend, key string) {
	r.release(r.eventually(b, driver.Request{Key: key}))
}

// refuse asserts that the key is refused because holder has it.
func (r *run) refuse(b driver.Backend, req driver.Request, holder *lease) {
	_ = r.refusal(b, req, holder)
}

// settle makes a call until its outcome is known, and returns that outcome: after an unknown one, or a
// refusal for now, it makes the call again. doubtful says that it did: an earlier call may have had an
// effect. If the case's time ends before that, the rule is broken.
func (r *run) settle(broken rule, what string, call func() error) (v verdict, doubtful bool, err error) {
	var last error
	for {
		err = call()
		last = r.latest(last, err)
		if v = r.saw(err); v != later && v != unknown {
			return v, doubtful, err
		}
		doubtful = true
		r.note("%s gave %v: %v", what, v, err)
		if !r.pause(poll) {
			r.fatal(broken, "%s gave no certain answer before the case's time was over: %v", what, last)
		}
	}
}

// refusal asserts what refuse asserts, and returns the error, which matches ErrHeld.
func (r *run) refusal(b driver.Backend, req driver.Request, holder *lease) error {
	var l *lease
	v, _, err := r.settle(fourOutcomes, "Acquire of a held key", func() (err error) {
		l, err = r.try(b, req)
		return err
	})
	switch {
	case v == granted && r.valid(holder):
		r.fatal(exclusion, "key %q was granted with token %d while another's lease with token %d had %v to go",
			short(req.Key), l.Grant().Fence, holder.Grant().Fence, left(holder))
	case v == granted:
		r.startOver("a lease of key %q ended before the next attempt was answered", short(req.Key))
	case v != held:
		r.fatal(fourOutcomes, "key %q is held, and yet Acquire gives %v: %v", short(req.Key), v, err)
	}
	return err
}

// heldBy asserts what refuse asserts, and returns the error as a *driver.HeldError.
func (r *run) heldBy(b driver.Backend, req driver.Request, holder *lease) *driver.HeldError {
	err := r.refusal(b, req, holder)
	var he *driver.HeldError
	if !errors.As(err, &he) {
		r.fatal(fourOutcomes, "an error is ErrHeld, and errors.As finds no *HeldError in it: %T %v", err, err)
	}
	return he
}

// renew extends a lease that is valid. After an unknown outcome the lock may have got the
// renewal's TTL already, and end by that.
func (r *run) renew(l *lease, renewal driver.Renewal) driver.Grant {
	if renewal.TTL == 0 {
		renewal.TTL = r.long()
	}
	start := time.Now()
	var g driver.Grant
	v, doubtful, err := r.settle(renewing, "Renew of a lease", func() (err error) {
		if g, err = l.Renew(r.ctx, &renewal); err != nil && !r.valid(l) {
			r.startOver("a lease ended before its renewal was answered: %v", err)
		}
		return err
	})
	switch {
	case v == lost && doubtful && time.Since(start) > renewal.TTL:
		r.startOver("a lease ended before its renewal was answered: %v", err)
	case v != granted:
		r.fatal(fourOutcomes, "Renew of a lease with %v to go gives %v: %v", left(l), v, err)
	}
	return g
}

// release releases a valid lease. ErrLost is correct only if the lease is no longer valid, or
// if an earlier try may have taken effect.
func (r *run) release(l *lease) {
	v, doubtful, err := r.settle(releasing, "Release", func() error { return l.Release(r.ctx) })
	if v != granted && (v != lost || !doubtful && r.valid(l)) {
		r.fatal(releasing, "Release of a lease with %v to go gives %v: %v", left(l), v, err)
	}
}

// lost asserts that a lease is certainly over, and that its owner can neither renew nor release
// it.
func (r *run) lost(l *lease) {
	r.lostQuietly(l)
	r.releaseEnded(l)
}

// renewEnded renews a lease that is over. The answer is granted or lost.
func (r *run) renewEnded(l *lease) verdict {
	v, _, err := r.settle(renewing, "Renew of a lease that is over", func() error {
		_, err := l.Renew(r.ctx, &driver.Renewal{TTL: r.long()})
		return err
	})
	if v != granted && v != lost {
		r.fatal(fourOutcomes, "Renew of a lease that is over gives %v: %v", v, err)
	}
	return v
}

// lostQuietly asserts that Renew returns ErrLost, and does not release the lease.
func (r *run) lostQuietly(l *lease) {
	if r.renewEnded(l) == granted {
		r.fatal(renewing, "Renew succeeded for a lease that was over")
	}
}

// releaseEnded asserts that a lease that is over can be released without an error, or
// with ErrLost.
func (r *run) releaseEnded(l *lease) {
	if v, _, err := r.settle(releasing, "Release of a lease that is over", func() error { return l.Release(r.ctx) }); v != granted && v != lost {
		r.fatal(releasing, "Release of a lease that is over gives %v: %v", v, err)
	}
}

// holds asserts that l still has key: another owner is refused, and a renewal succeeds.
func (r *run) holds(b driver.Backend, key string, l *lease) {
	r.refuse(b, driver.Request{Key: key}, l)
	r.renew(l, driver.Renewal{})
}

// misuse asserts that err says what is wrong with the request.
func (r *run) misuse(err error, what, detail string) {
	var ie *driver.InvalidError
	switch v := r.saw(err); {
	case v == granted:
		r.fatal(refuses, "%s was accepted", detail)
	case v != invalid:
		r.fatal(refuses, "%s gave %v, not ErrInvalid: %v", detail, v, err)
	case !errors.As(err, &ie):
		r.fatal(refuses, "%s gave an error that is ErrInvalid and no *InvalidError: %T", detail, err)
	case !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(what)):
		r.fatal(refuses, "%s gave an error that does not name the %s: %v", detail, what, err)
	}
}

// nothingStored asserts that after the clean-up nothing is stored for keys that begin with key.
// The clean-up has a quarter of the case's time.
func (r *run) nothingStored(b driver.Backend, key string) {
	for start := time.Now(); ; {
		found, known := r.residue(b, key)
		if !known || len(found) == 0 {
			return
		}
		if !r.pause(poll) {
			if waited := time.Since(start); waited < r.limit/4 {
				r.startOver("the case's time was over %v after the end of its calls, too soon for a clean-up", waited.Round(time.Millisecond))
			}
			r.stays(noLeaks, "a call that failed has left %d keys on the server, such as %q: nothing undoes it", len(found), short(found[0]))
		}
	}
}

// residue lists what is stored for key, if the harness or the backend can tell.
func (r *run) residue(b driver.Backend, key string) (found []string, known bool) {
	var err error
	switch {
	case r.h.Residue != nil:
		var all []string
		all, err = r.h.Residue(r.ctx)
		for _, name := range all {
			if strings.Contains(name, key) {
				found = append(found, name)
			}
		}
	default:
		i, ok := b.(driver.Inspector)
		if !ok {
			return nil, false
		}
		err = i.List(r.ctx, key, func(s *driver.State) bool {
			found = append(found, s.Key)
			return true
		})
	}
	if err != nil {
		r.note("the backend does not say whether anything of %q is stored: %v", short(key), err)
		return nil, false
	}
	return found, true
}

// valid reports whether a lease lasts at this instant, as far as its client can tell.
func (r *run) valid(l *lease) bool {
	g := l.Grant()
	if over(g.Lost) {
		return false
	}
	return g.Expires.IsZero() || time.Now().Before(g.Expires)
}

// left is how long a lease lasts, for messages.
func left(l *lease) any {
	g := l.Grant()
	if g.Expires.IsZero() {
		return "its session"
	}
	return time.Until(g.Expires).Round(time.Millisecond)
}

// over reports whether a channel, which may be nil, is closed.
func over(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// short cuts a key for a message.
func short(key string) string {
	if len(key) > 80 {
		return key[:60] + "…" + key[len(key)-10:]
	}
	return key
}
