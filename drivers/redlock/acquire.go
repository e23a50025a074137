package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Acquire makes one attempt to take the lock on a majority of the nodes. It is
// bounded by a few node timeouts, whatever ctx says, and does not wait for a holder;
// but a vote that several contenders split among them is settled here, so that one of
// them wins.
//
// The steps are those of the section "The Redlock Algorithm" of the Redlock page.
func (b *Backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if err := b.info.Check(b.opts.Prefix, req); err != nil {
		return nil, err
	}
	if err := b.begin(ctx); err != nil {
		return nil, err
	}
	defer b.calls.Done()
	if err := b.meet(ctx, req.TTL); err != nil {
		return nil, b.failed(ctx, err)
	}

	l := b.newLease(ctx, req, nil)    // step 1: the time
	res, err := l.elect(ctx, l.all()) // steps 2 and 3: all nodes, a majority
	if err == nil && res == split {   // step 5 of a failed round:
		l, res, err = b.settle(ctx, req, l) // release, wait, try again
	}
	if err == nil && res == won {
		err = l.win(ctx) // its token; step 4: is it still valid?
	}
	if err != nil {
		l.abandon() // step 5: all nodes are released
		return nil, b.failed(ctx, err)
	}
	b.waits.served(req.Key)
	b.count.granted(l)
	return l, nil
}

// begin counts a call in, so that Close can wait for what the call leaves to do.
func (b *Backend) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isClosed() {
		return driver.ErrClosed
	}
	b.calls.Add(1)
	return nil
}

// failed puts the context's end before a verdict that it brought about.
func (b *Backend) failed(ctx context.Context, err error) error {
	b.count.failures.Add(1)
	if end := ended(ctx); end != nil && !errors.Is(err, end) {
		return fmt.Errorf("%w: %w", end, err)
	}
	return err
}

// ended is ctx.Err, but knows of a deadline before the context's timer does: that of the
// nodes' time, which ends with it, may have been the first.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if deadline, ok := ctx.Deadline(); err == nil && ok && !time.Now().Before(deadline) {
		err = context.DeadlineExceeded
	}
	return err
}

// result is how a vote ended.
type result uint8

const (
	lost  result = iota // no majority; an error says why
	won                 // a majority granted
	split               // enough nodes answered, and no one owner has enough of them
)

// elect asks nodes for their votes, all at once, and returns as soon as the outcome is
// certain: at the q-th grant, or when a majority is out of reach.
func (l *lease) elect(ctx context.Context, of set) (result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.ask(ctx, of, (*lease).voted); err != nil {
		return lost, err
	}
	return l.outcome()
}

// ask sends the request to nodes and waits until done says that it has seen enough,
// or the nodes' time is over. l.mu is held, but for the waiting.
func (l *lease) ask(ctx context.Context, of set, done func(*lease) bool) error {
	attempt := l.attempt()
	w := l.round(ctx)
	for i := range l.requests {
		if g := &l.requests[i]; of.has(i) && !g.busy {
			g.join, g.held, g.vote = false, nil, driver.Vote{Node: g.n.name}
			g.req.Owner, g.req.ExactFence = attempt, 0
			l.send(w, g, (*nodeRequest).acquire, true)
		}
	}
	return l.await(ctx, w, done)
}

// voted reports whether the outcome of the vote is certain.
func (l *lease) voted() bool {
	agreed, pending := l.agreeing(l.in(owned)).len(), 0
	for i := range l.requests {
		if l.requests[i].awaited() {
			pending++
		}
	}
	switch {
	case agreed >= l.b.q, pending == 0:
		return true
	case agreed+pending >= l.b.q:
		return false
	}
	// Out of reach. Where the missing answers can still tell who has the lock, or that the
	// nodes refuse, they are worth their time: a bidder that does not know would bid again.
	t, enough := l.tally(), l.enough()
	open := func(n, enough int) bool { return 0 < n && n < enough && n+pending >= enough }
	return !open(t.most(), l.b.q) && !open(t.most(), enough) && !open(t.rivals, enough) && !open(t.refused, enough)
}

// idle reports whether no answer is awaited.
func (l *lease) idle() bool {
	for i := range l.requests {
		if l.requests[i].awaited() {
			return false
		}
	}
	return true
}

// outcome reads the votes. A node that has not answered by now failed.
func (l *lease) outcome() (result, error) {
	granted := l.in(owned)
	agreed := l.agreeing(granted)
	if agreed.len() >= l.b.q {
		l.blame(granted, agreed)
		if dup := l.b.duplicate.Load(); dup != nil {
			return lost, l.verdict(dup)
		}
		return won, nil
	}
	t := l.tally()
	switch {
	case t.invalid != nil:
		return lost, t.invalid
	case t.most() >= l.b.q:
		return lost, l.verdict(t.held(l))
	case granted.len() >= l.b.q:
		l.blame(granted, agreed)
		return lost, l.verdict(&driver.RefusedError{RetryAfter: skewPause, Reason: "the clocks of no majority of nodes agree (run NTP on them, or allow more)"})
	case granted.len()+t.heldBy+t.pending >= l.b.q:
		return split, nil
	}
	return lost, l.verdict(t.verdict(l))
}

// skewPause is when to look again at clocks that disagree.
const skewPause = time.Second

// win makes a lease of a won vote: it settles the counted nodes and the token,
// and then, as the last act, looks whether the lease is still valid.
func (l *lease) win(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.alike() {
		l.linger()
	}
	if l.count() < l.b.q {
		if err := l.raise(ctx); err != nil {
			return err
		}
	}
	if err := l.sitOut(ctx); err != nil {
		return err
	}
	if l.b.stall != nil {
		l.b.stall()
	}
	switch now := l.b.clock.Fresh(); {
	case now >= l.expires && !l.b.without(noValidity):
		return l.unknown("the nodes took %v, too long for a TTL of %v", now.Sub(l.start).Round(time.Microsecond), l.ttl)
	case l.b.clock.Jumps() != l.jumps:
		return l.unknown("the wall clock of this machine jumped meanwhile, so that it may have been stopped for longer than its other clocks show")
	}
	l.phase = holding
	for i := range l.requests {
		if g := &l.requests[i]; g.state == owned && !g.busy {
			w := l.round(l.ctx)
			l.send(w, g, (*nodeRequest).adopt, false)
			w.spent()
		}
	}
	return nil
}

// sitOut applies the rules "hold" and "return" of terms.go: it sets when the lease ends, and
// waits until it may be returned. That takes time only where the ways to the nodes are
// uneven, or their clocks apart, by more than is excused.
func (l *lease) sitOut(ctx context.Context) error {
	of := l.in(counted)
	if of.len() < l.b.q {
		return nil // a test has taken out why it cannot be so
	}
	expires, from := l.judge(of, l.start)
	l.expires = expires
	now := l.b.clock.Now()
	switch {
	case from <= now:
		return nil
	case from >= l.expires:
		return l.verdict(&driver.RefusedError{RetryAfter: skewPause, Reason: fmt.Sprintf("the clocks of the nodes are %v apart, or the ways to them too uneven, for a TTL of %v (run NTP on the nodes)", l.apart(of), l.ttl)})
	}
	t := time.NewTimer(from.Sub(now))
	defer t.Stop()
	l.mu.Unlock()
	defer l.mu.Lock()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-l.b.closed:
		return driver.ErrClosed
	}
}

// alike reports whether a majority answered the same token.
func (l *lease) alike() bool {
	agreed := l.agreeing(l.in(owned))
	for i := range l.requests {
		n := 0
		for j := range l.requests {
			if agreed.has(i) && agreed.has(j) && l.requests[i].fence == l.requests[j].fence {
				n++
			}
		}
		if n >= l.b.q {
			return true
		}
	}
	return false
}

// linger waits for the stragglers, for as long as the vote took: a second trip must be
// made anyway, and a node whose token is not in the maximum could not carry the lease.
func (l *lease) linger() {
	l.wait(min(max(l.b.clock.Now().Sub(l.start), time.Millisecond), l.timeout), (*lease).idle)
}

// count chooses the token and the nodes that count from the start, and returns how many
// they are. If q nodes answered the same token, the rule, since all got the same
// proposal, they are the ones and no more must be done. Otherwise the token is
// the largest of the agreeing nodes', and those under it must be raised to it.
func (l *lease) count() int {
	agreed := l.agreeing(l.in(owned))
	most, same := uint64(0), 0
	for i := range l.requests {
		if !agreed.has(i) {
			continue
		}
		n := 0
		for j := range l.requests {
			if agreed.has(j) && l.requests[j].fence == l.requests[i].fence {
				n++
			}
		}
		if n >= l.b.q {
			most, same = l.requests[i].fence, n
			break
		}
		most = max(most, l.requests[i].fence)
	}
	l.fence = most
	l.raising = 0
	for i := range l.requests {
		g := &l.requests[i]
		switch {
		case !agreed.has(i):
		case g.fence == most || same == 0 && l.b.without(noWriteBack):
			g.state = counted
		case same == 0:
			l.raising.add(i)
		}
	}
	return l.in(counted).len()
}

// raise writes the token back to the counted nodes that answered a smaller one. Only
// those that were in the maximum can confirm: a straggler with a larger token
// must not. A node confirms only if this very acquisition still owns it. With q
// confirmations there is a majority which this lease owned while its counters
// were at the token or above it; every later majority meets it in a node, and so gets a
// larger token.
func (l *lease) raise(ctx context.Context) error {
	l.raised = true
	w := l.round(ctx)
	for i := range l.requests {
		if g := &l.requests[i]; l.raising.has(i) {
			l.send(w, g, (*nodeRequest).writeBack, true)
		}
	}
	if err := l.await(ctx, w, (*lease).written); err != nil {
		return err
	}
	n := l.in(counted).len()
	if l.b.without(countLate) {
		n += l.in(owned).len()
	}
	if n < l.b.q {
		return l.unknown("the token could not be written back to a majority")
	}
	return nil
}

// written reports whether the outcome of the write-back is certain.
func (l *lease) written() bool {
	n, pending := l.in(counted).len(), 0
	if l.b.without(countLate) {
		n += l.in(owned).len()
	}
	for i := range l.requests {
		if l.raising.has(i) && l.requests[i].awaited() {
			pending++
		}
	}
	return n >= l.b.q || n+pending < l.b.q
}

const (
	rounds    = 16 // until a split is given up
	patience  = 3  // rounds in which a first node that others have is waited for
	leadTries = 8  // of the owner of the first node to get the rest
)

// settle ends a split: when contenders each got some nodes, and none a majority, to
// try again at the same time would split the vote again (of ten contenders on five
// nodes, in nine rounds of ten). So each releases all, waits for a random while, and
// asks first a single node, which the key's hash chooses: whoever gets it has no
// rival but newcomers, and asks the others. Those who don't are soon able to name the
// holder.
func (b *Backend) settle(ctx context.Context, req *driver.Request, l *lease) (*lease, result, error) {
	b.count.splits.Add(1)
	seen := l.favourite() // who had most nodes, then who had the first one last time
	for round := 1; round <= rounds; round++ {
		took := b.clock.Now().Sub(l.start)
		l.abandon()
		l.drain(ctx)
		if err := b.pause(ctx, took, round); err != nil {
			return l, lost, err
		}
		l = b.newLease(ctx, req, l)
		res, err := l.inOrder(ctx, &seen, round > patience)
		if err != nil || res == won {
			return l, res, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tally()
	return l, lost, l.verdict(t.verdict(l))
}

// pause waits for a random while, longer in each round; took is how long the last one
// was, which is the measure of the network and of the crowd.
func (b *Backend) pause(ctx context.Context, took time.Duration, round int) error {
	most := min(max(took, 100*time.Microsecond), leastTimeout) * time.Duration(min(round, 8))
	t := time.NewTimer(most/4 + b.random(most))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-b.closed:
		return driver.ErrClosed
	}
}

// inOrder asks the key's first node alone, then the rest. A first node that does not
// answer is passed over, in this request for good. Who has not got it leaves the
// rest alone, unless its holder is the one that was seen last time, and so may have them
// by now.
func (l *lease) inOrder(ctx context.Context, seen *string, impatient bool) (result, error) {
	for range l.requests {
		g := l.first()
		if g == nil {
			break
		}
		var alone set
		alone.add(g.n.index)
		l.mu.Lock()
		err := l.ask(ctx, alone, (*lease).idle)
		state, holder := g.state, g.holder()
		g.suspect = state != owned && holder == ""
		l.mu.Unlock()
		switch {
		case err != nil:
			return lost, err
		case state == owned:
			return l.lead(ctx)
		case holder == "":
			continue
		case holder == *seen, impatient:
			return l.elect(ctx, l.remaining())
		}
		*seen = holder
		return split, nil
	}
	return l.elect(ctx, l.all())
}

// lead gets the rest, having the first node. What stands in the way are newcomers,
// who give up what they got unless they got a majority; so it keeps what it has and
// asks again.
func (l *lease) lead(ctx context.Context) (result, error) {
	for try := 1; ; try++ {
		at := time.Now()
		res, err := l.elect(ctx, l.remaining())
		if err != nil || res != split || try == leadTries {
			return res, err
		}
		if err := l.b.pause(ctx, time.Since(at)/2, 1); err != nil {
			return lost, err
		}
	}
}

// favourite returns the owner that was seen on most nodes.
func (l *lease) favourite() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch t := l.tally(); {
	case t.rival != nil:
		return t.rival.holder()
	case t.next != nil:
		return nextInLine
	}
	return ""
}

// first returns the first node in the key's order that is not known to be away.
func (l *lease) first() *nodeRequest {
	h := uint32(2166136261) // FNV-1a: the same in every process
	for i := 0; i < len(l.req.Key); i++ {
		h = (h ^ uint32(l.req.Key[i])) * 16777619
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.requests {
		g := &l.requests[(h+uint32(i))%uint32(len(l.requests))]
		if !g.suspect && !g.busy && !g.n.tripped.Load() {
			return g
		}
	}
	return nil
}

// all returns the nodes to ask: all, but for those that did not answer in an earlier
// round, if there is a majority without them.
func (l *lease) all() set {
	l.mu.Lock()
	defer l.mu.Unlock()
	var every, live set
	for i := range l.requests {
		every.add(i)
		if !l.requests[i].suspect {
			live.add(i)
		}
	}
	if live.len() >= l.b.q {
		return live
	}
	return every
}

// remaining returns the nodes of all that have not granted.
func (l *lease) remaining() set {
	s := l.all()
	l.mu.Lock()
	defer l.mu.Unlock()
	return s &^ l.in(owned)
}
