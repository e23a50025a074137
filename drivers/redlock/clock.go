package redlock

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// set is a set of nodes, by their index.
type set uint16

func (s set) has(i int) bool { return s&(1<<i) != 0 }
func (s *set) add(i int)     { *s |= 1 << i }
func (s set) len() int       { return bits.OnesCount16(uint16(s)) }

// sample is what an answer says of its node's clock: it was read at an instant
// between the request and the answer, so its offset from ours is mid ± half.
type sample struct {
	mid, half time.Duration
	known     bool
}

// sample reads the clock of an answer to a request that was under way from sent to
// received.
func (b *Backend) sample(clock, sent, received time.Time) sample {
	if clock.IsZero() {
		return sample{}
	}
	half := received.Sub(sent) / 2
	local := sent.Sub(b.epoch) + half
	return sample{mid: time.Duration(clock.UnixNano()) - local, half: half, known: true}
}

// learn keeps a node's clock for the proposal of tokens.
func (n *node) learn(s sample) {
	if s.known {
		n.offset.Store(int64(s.mid))
		n.heard.Store(true)
	}
}

// floor is the token that is proposed to all nodes, p: the median of their
// clocks, as their answers showed them, carried forward on the local monotonic
// clock. All nodes get the same, and so answer the same. The wall clock of the client
// has no part in it: a slow one would propose a token under those that a node
// without its memory has forgotten. Zero before the first answer.
func (b *Backend) floor(now time.Time) uint64 {
	var buf [MaxNodes]int64
	offsets := buf[:0]
	for _, n := range b.nodes {
		if n.heard.Load() {
			offsets = append(offsets, n.offset.Load())
		}
	}
	if len(offsets) == 0 {
		return 0
	}
	slices.Sort(offsets)
	us := (offsets[(len(offsets)-1)/2] + int64(now.Sub(b.epoch))) / int64(time.Microsecond)
	return uint64(max(us, 0))
}

// medianOfOthers is what the clocks of the other nodes say now: the upper of two
// medians. A node that was restarted with a clock that is behind counts its quarantine
// from there. Zero while fewer are known than make a majority with this node: by its own
// clock alone it begins none.
func (n *node) medianOfOthers() time.Time {
	b := n.b
	var buf [MaxNodes]int64
	offsets := buf[:0]
	for _, other := range b.nodes {
		if other != n && other.heard.Load() {
			offsets = append(offsets, other.offset.Load())
		}
	}
	if len(offsets) < b.q-1 || len(offsets) == 0 {
		return time.Time{}
	}
	slices.Sort(offsets)
	return time.Unix(0, offsets[len(offsets)/2]+int64(time.Since(b.epoch)))
}

// agreeing returns the largest set of those legs whose clocks agree pairwise within
// the allowance and what the round trips leave uncertain. It is the one place where
// clocks are judged: every set of nodes that counts, at the grant, at a renewal and for
// a straggler, goes through it. An unknown clock agrees with nothing.
func (l *lease) agreeing(of set) set {
	if l.b.without(noClockCheck) {
		return of
	}
	var buf [MaxNodes]int
	order := buf[:0]
	all := true
	for i := range l.requests {
		if !of.has(i) || !l.requests[i].clock.known {
			continue
		}
		for _, j := range order {
			all = all && l.agree(i, j)
		}
		order = append(order, i)
	}
	if all {
		return members(order)
	}
	slices.SortFunc(order, func(i, j int) int { return int(l.requests[i].clock.mid - l.requests[j].clock.mid) })
	var best []int
	for from := range order {
		to := from + 1
		for to < len(order) && l.agreesWithAll(order[to], order[from:to]) {
			to++
		}
		if to-from > len(best) {
			best = order[from:to]
		}
	}
	return members(best)
}

func members(order []int) set {
	var s set
	for _, i := range order {
		s.add(i)
	}
	return s
}

func (l *lease) agreesWithAll(i int, others []int) bool {
	for _, j := range others {
		if !l.agree(i, j) {
			return false
		}
	}
	return true
}

func (l *lease) agree(i, j int) bool {
	a, b := &l.requests[i].clock, &l.requests[j].clock
	return (a.mid - b.mid).Abs() <= l.b.opts.ClockAllowance+a.half+b.half
}

// blame marks the legs of granted that are not in agreed with what is wrong with
// their clocks, for the votes.
func (l *lease) blame(granted, agreed set) {
	if granted == agreed {
		return
	}
	for i := range l.requests {
		leg := &l.requests[i]
		switch {
		case !granted.has(i):
		case agreed.has(i):
			leg.n.skewed.Store(false)
		case !leg.clock.known:
			leg.vote.Err = errClockUnknown
		default:
			leg.vote.Err = l.skew(i, granted)
			if !leg.n.skewed.Swap(true) {
				err := leg.vote.Err
				l.b.event(driver.Notice{Kind: driver.NoticeClockSkew, Node: leg.n.name, Key: l.req.Key, Err: err, Detail: err.Error()})
			}
		}
	}
}

var errClockUnknown = errors.New("it does not tell its clock, and so does not count")

// skew says by how much node i's clock differs from the median of the others.
func (l *lease) skew(i int, of set) error {
	var others []time.Duration
	for j := range l.requests {
		if j != i && of.has(j) && l.requests[j].clock.known {
			others = append(others, l.requests[j].clock.mid)
		}
	}
	slices.Sort(others)
	off := l.requests[i].clock.mid
	if len(others) > 0 {
		off -= others[(len(others)-1)/2]
	}
	way := "ahead of"
	if off < 0 {
		off, way = -off, "behind"
	}
	return fmt.Errorf("its clock is %v %s the others (allowed is %v)", off.Round(time.Millisecond), way, l.b.opts.ClockAllowance)
}
