package redisnode

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxBatch bounds a pipeline: its last command waits for all before it.
	maxBatch = 128
	// maxQueue bounds what waits for a lane.
	maxQueue = 16384
)

// A Call is one script to run. It belongs to the lanes once it was handed over.
type Call struct {
	SHA  string // EVALSHA of this…
	Text string // …or, where it is not empty, EVAL of this
	Keys []string
	Args []string

	Reply []any
	Err   error

	ctx      context.Context // values only
	deadline time.Time
	state    atomic.Int32
	done     chan struct{} // closed once Reply and Err are set
}

// The states of a call. Only one of sending and leaving wins.
const (
	callQueued int32 = iota
	callSent
	callLeft
)

// lanes carry calls to one server process, several at a time: a call that finds an
// idle lane goes alone at once; those that find all of them under way gather, and
// go together in one pipeline with the next lane that comes back. So a lone caller
// waits for nobody, and many share round trips.
//
// Where the library heeds deadlines, a call that goes alone does so on the caller's
// own goroutine: passing it to another costs a third of a round trip on loopback.
// It is then bounded by its deadline, and notices a cancellation with the answer.
// Elsewhere the caller leaves when its context ends, whatever the library does.
// What is under way to a server that does not answer is bounded: the lanes.
type lanes struct {
	exec   func(ctx context.Context, calls []*Call)
	direct bool
	wg     *tracker

	mu    sync.Mutex
	queue []*Call
	busy  int
	due   []time.Time // by when each busy lane is to be back; a zero is free
}

func newLanes(exec func(context.Context, []*Call), most int, direct bool, wg *tracker) *lanes {
	return &lanes{exec: exec, direct: direct, due: make([]time.Time, most), wg: wg}
}

// do runs c and returns its error; ctx has a deadline. An error that is ErrNotSent
// says that no byte left; any other that is no ServerError leaves the outcome
// unknown, and c.done tells when the client library gave up.
func (l *lanes) do(ctx context.Context, c *Call) error {
	if err := ctx.Err(); err != nil {
		return &notSent{err}
	}
	c.ctx = ctx
	c.deadline, _ = ctx.Deadline()
	lane, err := l.enter(c)
	if err != nil {
		return &notSent{err}
	}
	if lane >= 0 {
		if l.direct {
			return l.alone(lane, c)
		}
		c.done = make(chan struct{})
		go l.carry(lane, []*Call{c})
	}
	select {
	case <-c.done:
		return c.Err
	case <-ctx.Done():
	}
	if c.state.CompareAndSwap(callQueued, callLeft) {
		return &notSent{ctx.Err()}
	}
	select {
	case <-c.done: // at the same moment: the answer is worth more
		return c.Err
	default:
		return ctx.Err()
	}
}

// enter takes an idle lane for c, or queues c and returns -1.
func (l *lanes) enter(c *Call) (lane int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy < len(l.due) {
		for !l.due[lane].IsZero() {
			lane++
		}
		l.due[lane] = c.deadline
		l.busy++
		l.wg.add()
		c.state.Store(callSent)
		return lane, nil
	}
	if hung := l.hung(); hung > 0 || len(l.queue) >= maxQueue {
		return -1, fmt.Errorf("node is hung or overloaded: %d calls under way, %d waiting, the oldest %v overdue", l.busy, len(l.queue), hung.Round(time.Millisecond))
	}
	c.done = make(chan struct{})
	l.queue = append(l.queue, c)
	return -1, nil
}

// alone carries c on the caller's goroutine. Who came meanwhile goes on another.
func (l *lanes) alone(lane int, c *Call) error {
	one := [1]*Call{c}
	l.exec(batchContext(one[:]), one[:])
	c.done = answered
	if batch := l.next(lane, nil); batch != nil {
		go l.carry(lane, batch)
	}
	return c.Err
}

// answered is the done of a call that nobody waited for.
var answered = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// carry carries batches until nothing is left to send.
func (l *lanes) carry(lane int, batch []*Call) {
	for batch != nil {
		l.exec(batchContext(batch), batch)
		for _, c := range batch {
			close(c.done)
		}
		batch = l.next(lane, batch[:0])
	}
}

// hung returns how long every lane has been overdue: zero while one is in time.
// A client library that heeds deadlines is never late.
func (l *lanes) hung() time.Duration {
	const allowance = 100 * time.Millisecond
	now := time.Now()
	var longest time.Duration
	for _, due := range l.due {
		late := now.Sub(due)
		if due.IsZero() || late < allowance {
			return 0
		}
		longest = max(longest, late)
	}
	return longest
}

// next takes what is queued, without those whose callers left, for a lane that has
// come back. It returns nil, and gives the lane up, where nothing is.
func (l *lanes) next(lane int, batch []*Call) []*Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) > 0 && len(batch) < maxBatch {
		c := l.queue[0]
		l.queue[0] = nil
		l.queue = l.queue[1:]
		if c.state.CompareAndSwap(callQueued, callSent) {
			batch = append(batch, c)
		}
	}
	if len(batch) > 0 {
		l.due[lane] = latest(batch)
		return batch
	}
	l.queue = nil
	l.busy--
	l.due[lane] = time.Time{}
	l.wg.done()
	return nil
}

func latest(batch []*Call) time.Time {
	var t time.Time
	for _, c := range batch {
		if c.deadline.After(t) {
			t = c.deadline
		}
	}
	return t
}

// deadlineOnly is a context that tells the client library the deadline, as a
// socket needs it, and cannot be cancelled: the caller leaves by itself, and a
// library that watches Done would give up a connection that others share.
type deadlineOnly struct {
	context.Context // without cancellation: for its values
	deadline        time.Time
}

func (c deadlineOnly) Deadline() (time.Time, bool) { return c.deadline, true }

func batchContext(batch []*Call) context.Context {
	values := context.Background()
	if len(batch) == 1 {
		values = context.WithoutCancel(batch[0].ctx)
	}
	return deadlineOnly{values, latest(batch)}
}
