package redlock

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
	"github.com/redlock-go/redlock/driver/quorum"
)

// skewPause is the pause before trying again after clocks disagreed.
const skewPause = time.Second

// says returns the error for a verdict: nil if the verdict is none, or no error. cause is why the
// caller ended the wait. l.mu is held.
func (l *lease) says(v verdict, cause error, now boot.Instant) error {
	since := now.Sub(l.bid.start).Round(time.Microsecond)
	switch v {
	case open, won, extended:
		return nil
	case interrupted:
		return cause
	case invalid:
		i := slices.IndexFunc(l.requests, func(g nodeRequest) bool { return errors.Is(g.err, driver.ErrInvalid) })
		return l.requests[i].err
	case twice:
		return l.verdict(l.b.duplicate.Load(), now)
	case heldBy:
		return l.verdict(l.held(), now)
	case denied, denyNow:
		return l.verdict(l.refusal(v), now)
	case apart:
		return l.verdict(&driver.RefusedError{RetryAfter: skewPause, Reason: fmt.Sprintf("the clocks of no majority of the nodes agree, or the delays to them are too uneven: they are %v apart (run NTP on the nodes, or set a longer clock_allowance)", l.apart(l.bid.which(func(g *part) bool { return g.clock.known })))}, now)
	case late:
		return l.unknown(now, "the nodes took %v, too long for a TTL of %v", since, l.bid.ttl)
	case stopped:
		return l.unknown(now, "the wall clock of this machine jumped meanwhile, so that it may have been stopped for longer than its other clocks show")
	case unwritten:
		return l.unknown(now, "the token could not be written back to a majority")
	case lost:
		return driver.ErrLost
	case lostNow:
		return l.verdict(driver.ErrLost, now)
	case overdue:
		return l.unknown(now, "the renewal took %v, and the nodes' clocks are %v apart: too much for a TTL of %v", since, l.apart(l.bid.acked()), l.bid.ttl)
	case unconfirmed:
		return l.unconfirmed(now)
	}
	return l.verdict(nil, now)
}

// apart returns how far the clocks of these nodes differ, as measured over their links.
func (l *lease) apart(of set) time.Duration {
	var most time.Duration
	for i := range l.requests {
		for j := range i {
			if of.has(i) && of.has(j) {
				most = max(most, (l.bid.mid(i) - l.bid.mid(j)).Abs())
			}
		}
	}
	return most.Round(time.Millisecond)
}

// blame notes in the votes of these nodes how far their clocks are off, and returns a notice for
// each that was not off before. l.mu is held.
func (l *lease) blame(wrong set) (notices []driver.Notice) {
	for i := range l.requests {
		if g := &l.requests[i]; wrong.has(i) {
			g.err = l.skew(i)
			if !g.node().skewed.Swap(true) {
				notices = append(notices, driver.Notice{Kind: quorum.NoticeClockSkew, Node: g.node().name, Key: l.key, Err: g.err, Detail: g.err.Error()})
			}
		}
	}
	return notices
}

// skew returns how far node i's clock differs from the median of the others.
func (l *lease) skew(i int) error {
	if !l.bid.parts[i].clock.known {
		return errors.New("it does not send its clock, and so does not count")
	}
	var others []time.Duration
	for j := range l.requests {
		if j != i && l.bid.parts[j].clock.known {
			others = append(others, l.bid.mid(j))
		}
	}
	off, way := l.bid.mid(i)-median(others), "ahead of" // a clock is wrong only beside others
	if off < 0 {
		off, way = -off, "behind"
	}
	return fmt.Errorf("its clock is %v %s the others (allowed is %v)", off.Round(time.Millisecond), way, l.bid.parts[i].clock.excuse)
}

// refusal returns the error of nodes that refuse so that no majority is left: a permanent
// refusal, or the one after whose RetryAfter a majority is possible again.
func (l *lease) refusal(v verdict) error {
	var forever, today []*driver.RefusedError
	for i := range l.requests {
		var r *driver.RefusedError
		switch g := &l.bid.parts[i]; {
		case g.silent() || !errors.As(l.requests[i].err, &r):
		case g.said == refused:
			forever = append(forever, r)
		case g.said == deferred:
			today = append(today, r)
		}
	}
	if v == denied {
		r := forever[0]
		return &driver.RefusedError{Reason: r.Reason, Err: r.Err}
	}
	r := firstToEnd(today, len(forever), l.bid.enough())
	return &driver.RefusedError{RetryAfter: r.RetryAfter, Reason: r.Reason, Err: r.Err}
}

// firstToEnd returns the refusal whose end makes a majority possible again: by then the refusals
// that end later, together with the permanent ones, are fewer than enough to prevent it.
func firstToEnd(today []*driver.RefusedError, forever, enough int) *driver.RefusedError {
	slices.SortFunc(today, func(a, b *driver.RefusedError) int { return cmp.Compare(a.RetryAfter, b.RetryAfter) })
	return today[len(today)+forever-enough]
}

// held returns the verdict that the rival has the lock, or, if it has too few nodes for that,
// that the lock is kept for the first waiter.
func (l *lease) held() *driver.HeldError {
	t, free := l.bid.tally(), l.freeIn()
	var rival, next *driver.HeldError
	for i := range l.requests {
		h := l.requests[i].held()
		switch g := &l.bid.parts[i]; {
		case h == nil:
		case g.said == reserved && (next == nil || h.RetryAfter > next.RetryAfter):
			next = h
		case g.said == held && g.owner == t.rival && rival == nil:
			rival = h
		}
	}
	var h driver.HeldError
	if t.rivals >= l.bid.enough() {
		h = *rival
		h.Holder, h.RetryAfter = requester(rival.Holder), free
	} else if h = *next; free > 0 {
		h.RetryAfter = min(h.RetryAfter, free)
	}
	h.Server = ""
	h.PollAfter = l.pollAfter()
	return &h
}

// pollAfter is the q-th largest pause that the nodes allow a watcher: no majority is released
// unannounced within it.
func (l *lease) pollAfter() time.Duration {
	var buf [MaxNodes]time.Duration
	pauses := buf[:0]
	for i := range l.requests {
		pause := time.Duration(0)
		if held := l.requests[i].held(); held != nil {
			pause = held.PollAfter
		}
		pauses = append(pauses, pause)
	}
	return reached(pauses, l.b.q)
}

// reached returns the largest value that q nodes have reached; zero if there are fewer than q.
// For counters it is a lease's token, which was written to a majority: larger counters on fewer
// nodes belong to failed bids.
func reached[T uint64 | time.Duration](values []T, q int) T {
	if len(values) < q {
		return 0
	}
	slices.Sort(values)
	return values[len(values)-q]
}

// freeIn is the q-th smallest remaining TTL: the time until a majority is free unless the lease
// is renewed. Zero: unknown.
func (l *lease) freeIn() time.Duration {
	const never = time.Duration(math.MaxInt64)
	var buf [MaxNodes]time.Duration
	left := buf[:0]
	for i := range l.requests {
		switch h := l.requests[i].held(); {
		case l.bid.parts[i].state >= leaving:
			left = append(left, 0)
		case h != nil && h.RetryAfter > 0:
			left = append(left, h.RetryAfter)
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

// requester removes the token and the attempt's number from an owner that a node stores, so that
// all attempts of one request are one owner.
func requester(holder string) string {
	owner, _, _ := strings.Cut(holder, "|")
	i := strings.LastIndexByte(owner, '/')
	if i <= 0 || i == len(owner)-1 || len(owner)-i > 7 || strings.Trim(owner[i+1:], "0123456789abcdefghijklmnopqrstuvwxyz") != "" {
		return owner
	}
	return owner[:i]
}

// votes returns the answer of each node. l.mu is held.
func (l *lease) votes() []quorum.Vote {
	votes := make([]quorum.Vote, len(l.requests))
	for i := range l.requests {
		g := &l.requests[i]
		votes[i] = quorum.Vote{Node: g.node().name, Granted: l.bid.parts[i].state >= leaving && g.err == nil, Latency: g.latency, Err: g.err}
	}
	return votes
}

// verdict returns the error for a failed vote or renewal; a nil verdict means unknown. l.mu is
// held.
func (l *lease) verdict(verdict error, now boot.Instant) *quorum.Error {
	e := &quorum.Error{Need: l.b.q, Votes: l.votes(), Verdict: verdict}
	var refused *driver.RefusedError
	_ = errors.As(verdict, &refused)
	var causes *multierror.Error
	for i := range l.requests {
		g := &l.requests[i]
		if g.held() != nil && errors.Is(verdict, driver.ErrHeld) {
			continue // the verdict already says that this node's lock is held
		}
		if err := l.cause(i, now); err != nil {
			e.Votes[i].Err = err
			var own *driver.RefusedError
			if refused != nil && errors.As(err, &own) && own.Reason == refused.Reason && strings.HasPrefix(own.Reason, g.node().name) {
				continue // the verdict is this node's own error
			}
			causes = multierror.Append(causes, errors.New(g.node().says(err)))
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

// cause returns why the node did not grant or confirm; nil if the verdict came before its
// answer.
func (l *lease) cause(i int, now boot.Instant) error {
	g := &l.requests[i]
	if g.err == nil && l.bid.awaited.has(i) && now >= g.until {
		return fmt.Errorf("no answer within %v", now.Sub(max(l.bid.start, l.bid.voted)).Round(time.Millisecond))
	}
	return g.err
}

// unknown returns an error that proves nothing, with the votes.
func (l *lease) unknown(now boot.Instant, format string, args ...any) error {
	return fmt.Errorf(format+" (%w)", append(args, l.verdict(nil, now))...)
}

// unconfirmed returns the error for a renewal that no majority confirmed. A node that joined in it
// has granted the lock, but does not count yet.
func (l *lease) unconfirmed(now boot.Instant) error {
	e := l.verdict(nil, now)
	e.Action = "confirmed"
	acks := l.bid.acked()
	for i := range e.Votes {
		e.Votes[i].Granted = acks.has(i)
	}
	return fmt.Errorf("a majority did not confirm the renewal (%w)", e)
}
