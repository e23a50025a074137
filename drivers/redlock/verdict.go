package redlock

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"
	"github.com/redlock-go/redlock/driver"
)

// tally is what the nodes that did not grant said.
type tally struct {
	pending int                            // nodes that may still answer
	heldBy  int                            // nodes that somebody else has, or is kept for
	rivals  int                            // of which so many one owner has, the rival
	rival   *nodeRequest                   // one of the rival's nodes
	kept    int                            // of which so many are kept for the next in line there, whoever that is
	next    *nodeRequest                   // that of them which is kept longest
	refused int                            // nodes that will not
	forever int                            // of which so many not as they are configured
	reason  *driver.RefusedError           // a permanent one, if there is one
	today   [MaxNodes]*driver.RefusedError // the others
	invalid error                          // misuse
}

// tally counts the answers. A node that has an earlier attempt of this very request,
// whose release is still under way, is no rival's.
func (l *lease) tally() tally {
	var t tally
	for i := range l.requests {
		g := &l.requests[i]
		if g.awaited() && g.round.ctx.Err() == nil {
			t.pending++
		}
		if g.busy || g.state >= owned {
			continue
		}
		if g.held != nil {
			t.heldBy++
			if g.held.ReservedForWaiter {
				t.kept++
				if t.next == nil || g.held.RetryAfter > t.next.held.RetryAfter {
					t.next = g
				}
				continue
			}
			if n := l.heldBy(g.holder()); n > t.rivals {
				t.rivals, t.rival = n, g
			}
			continue
		}
		t.refusal(g.vote.Err)
	}
	return t
}

// most counts the rival's nodes, and those that are kept: who is next there has most of the
// others as a rule, or will.
func (t *tally) most() int { return t.rivals + t.kept }

// enough is on how many nodes another owner rules a majority out.
func (l *lease) enough() int { return len(l.requests) - l.b.q + 1 }

// heldBy counts the nodes of one owner.
func (l *lease) heldBy(holder string) int {
	if holder == "" || holder == l.req.Owner {
		return 0
	}
	n := 0
	for i := range l.requests {
		if g := &l.requests[i]; !g.busy && g.state < owned && g.holder() == holder {
			n++
		}
	}
	return n
}

func (t *tally) refusal(err error) {
	var r *driver.RefusedError
	var invalid *driver.InvalidError
	switch {
	case errors.As(err, &invalid):
		t.invalid = err
	case !errors.As(err, &r):
	case r.RetryAfter == 0:
		t.refused++
		t.forever++
		t.reason = r
	default:
		t.today[t.refused-t.forever] = r
		t.refused++
	}
}

// soonest returns the refusal after which too few are left to stand in the way of a
// majority.
func (t *tally) soonest(enough int) *driver.RefusedError {
	today := t.today[:t.refused-t.forever]
	slices.SortFunc(today, func(a, b *driver.RefusedError) int { return cmp.Compare(a.RetryAfter, b.RetryAfter) })
	return today[t.refused-enough]
}

// verdict is what the answers prove, if no majority can be had: one other owner, or
// refusals, on so many nodes that too few are left. nil: nothing.
func (t *tally) verdict(l *lease) error {
	enough := l.enough()
	switch {
	case t.most() >= enough:
		return t.held(l)
	case t.forever >= enough:
		return &driver.RefusedError{Reason: t.reason.Reason, Err: t.reason.Err}
	case t.refused >= enough:
		r := t.soonest(enough)
		return &driver.RefusedError{RetryAfter: r.RetryAfter, Reason: r.Reason, Err: r.Err}
	}
	return nil
}

// held is the verdict that the rival has the lock, or, where it has too few nodes to rule a
// majority out by itself, that the lock is kept for the next in line.
func (t *tally) held(l *lease) *driver.HeldError {
	free := l.freeIn()
	var h driver.HeldError
	if t.rivals >= l.enough() {
		h = *t.rival.held
		h.Holder, h.RetryAfter = t.rival.holder(), free
	} else if h = *t.next.held; free > 0 {
		h.RetryAfter = min(h.RetryAfter, free)
	}
	h.Server = ""
	h.PollAfter = l.pollAfter()
	return &h
}

// pollAfter is the q-th largest pause that the nodes allow a watcher: so long no majority
// is released in silence.
func (l *lease) pollAfter() time.Duration {
	var buf [MaxNodes]time.Duration
	pauses := buf[:0]
	for i := range l.requests {
		pause := time.Duration(0)
		if held := l.requests[i].held; held != nil {
			pause = held.PollAfter
		}
		pauses = append(pauses, pause)
	}
	slices.Sort(pauses)
	return pauses[len(pauses)-l.b.q]
}

// freeIn is the q-th smallest remaining TTL: when a majority will be free, unless it is
// renewed. Zero where unknown.
func (l *lease) freeIn() time.Duration {
	const never = time.Duration(1<<63 - 1)
	var buf [MaxNodes]time.Duration
	left := buf[:0]
	for i := range l.requests {
		switch g := &l.requests[i]; {
		case g.state >= owned:
			left = append(left, 0)
		case g.held != nil && g.held.RetryAfter > 0:
			left = append(left, g.held.RetryAfter)
		default:
			left = append(left, never)
		}
	}
	slices.Sort(left)
	if d := left[l.b.q-1]; d != never {
		return d
	}
	return 0
}

// holder is who has the node. Empty: nobody is known to.
func (g *nodeRequest) holder() string {
	if g.held == nil {
		return ""
	}
	if g.held.ReservedForWaiter {
		return nextInLine
	}
	return request(g.held.Holder)
}

// nextInLine stands for the owner of a node that is kept for who waits first. No owner
// has a space in it.
const nextInLine = "next in line"

// request strips the token and the number of the attempt off an owner as nodes know it,
// so that all attempts of one request are one owner.
func request(holder string) string {
	owner, _, _ := strings.Cut(holder, "|")
	i := strings.LastIndexByte(owner, '/')
	if i <= 0 || i == len(owner)-1 || len(owner)-i > 7 {
		return owner
	}
	for _, c := range owner[i+1:] {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return owner
		}
	}
	return owner[:i]
}

// votes returns what each node said. l.mu is held.
func (l *lease) votes() []driver.Vote {
	votes := make([]driver.Vote, len(l.requests))
	for i := range l.requests {
		votes[i] = l.requests[i].vote
		votes[i].Granted = l.requests[i].state >= owned && votes[i].Err == nil
	}
	return votes
}

// verdict returns the error for a vote or a renewal that failed; the verdict may be nil,
// for unknown. l.mu is held.
func (l *lease) verdict(verdict error) error {
	e := &driver.QuorumError{Need: l.b.q, Votes: l.votes(), Verdict: verdict}
	var refused *driver.RefusedError
	_ = errors.As(verdict, &refused)
	var causes *multierror.Error
	for i := range l.requests {
		g := &l.requests[i]
		if g.held != nil && errors.Is(verdict, driver.ErrHeld) {
			continue // it has been said
		}
		if err := g.cause(); err != nil {
			e.Votes[i].Err = err
			var own *driver.RefusedError
			if refused != nil && errors.As(err, &own) && own.Reason == refused.Reason && strings.HasPrefix(own.Reason, g.n.name) {
				continue // it is the verdict
			}
			causes = multierror.Append(causes, errors.New(g.n.says(err)))
		}
	}
	if causes != nil {
		causes.ErrorFormat = func(errs []error) string {
			lines := make([]string, len(errs))
			for i, err := range errs {
				lines[i] = err.Error()
			}
			return strings.Join(lines, "; ")
		}
		e.Detail = causes.Error()
	}
	return e
}

// cause is why the node did not grant, or confirm; nil where the verdict came before its
// answer.
func (g *nodeRequest) cause() error {
	if g.vote.Err == nil && g.awaited() && g.round.ctx.Err() != nil {
		return fmt.Errorf("no answer within %v", time.Since(g.round.began).Round(time.Millisecond))
	}
	return g.vote.Err
}

// unknown returns an error that proves nothing, with the votes.
func (l *lease) unknown(format string, args ...any) error {
	return fmt.Errorf(format+" (%w)", append(args, l.verdict(nil))...)
}
