package redlock

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
)

// node is one member of the quorum, with all that is under way to it.
//
// Requests to a node are blocking calls, so each needs a goroutine; these are
// workers that are kept for the next request (their stacks have grown to what a
// client needs), at most Options.InFlight of them. What is beyond that waits in a
// bounded queue, and what is beyond the queue fails at once: so a node that never
// answers costs a bounded number of goroutines.
type node struct {
	b       *Backend
	index   int
	name    string // without any secret
	backend driver.Backend

	server  atomic.Pointer[string] // which process answered last
	others  func() time.Time       // the clocks of the other nodes; see clock.go
	skewed  atomic.Bool            // its clock disagreed when it last counted
	tripped atomic.Bool            // the breaker is open

	clockMu   sync.Mutex
	clock     reading // of its last answer
	jumps     int64   // of the client's clock, then
	terms     driver.Terms
	termsAt   boot.Instant // before they were last confirmed
	remembers bool         // terms are known

	mu       sync.Mutex
	workers  int
	idle     []*worker // the one used last is on top
	queue    []*nodeRequest
	reaper   *time.Timer
	closed   bool
	gone     chan struct{} // closed when the last worker went after close
	timeouts int           // in a row
	since    time.Time     // the first of them
	probeAt  time.Time     // when an open breaker lets the next request through
	pause    time.Duration // until the probe after that
}

type worker struct {
	tasks chan *nodeRequest // of capacity one; closed: go
	since time.Time         // idle
}

const (
	queued      = 4096             // calls that may wait for a worker
	idleTime    = 10 * time.Second // after which a worker goes
	tripAfter   = 5                // timeouts in a row, and for so long: many end at once
	tripTime    = 200 * time.Millisecond
	firstProbe  = 500 * time.Millisecond
	slowestTest = 8 * time.Second // the longest pause between probes
)

// Why a node was not asked.
var (
	errSkipped = errors.New("skipped, since it keeps timing out")
	errBusy    = errors.New("too many requests to it are under way")
)

func newNode(b *Backend, i int, nb driver.Backend) *node {
	n := &node{b: b, index: i, backend: nb, gone: make(chan struct{})}
	if s, ok := nb.(fmt.Stringer); ok {
		n.name = s.String()
	} else {
		n.name = fmt.Sprintf("%s#%d", nb.Info().Name, i+1)
	}
	n.others = n.othersNow
	return n
}

// says returns an error's text with the node's name before it, unless it begins with that.
func (n *node) says(err error) string {
	if text := err.Error(); n.nameless(err) != text {
		return text
	}
	return n.name + ": " + err.Error()
}

// nameless returns an error's text without the node's name, if it begins with that.
func (n *node) nameless(err error) string {
	text := err.Error()
	for _, after := range []string{": ", " "} {
		if rest, ok := strings.CutPrefix(text, n.name+after); ok {
			return rest
		}
	}
	return text
}

// start hands a call to a worker. An error says that it will not be done.
func (n *node) start(g *nodeRequest) error {
	n.mu.Lock()
	switch last := len(n.idle) - 1; {
	case n.closed && n.workers == 0: // until then, what follows from an answer is done
		n.mu.Unlock()
		return driver.ErrClosed
	case last >= 0:
		w := n.idle[last]
		n.idle = n.idle[:last]
		n.mu.Unlock()
		w.tasks <- g // has room: an idle worker's channel is empty
		return nil
	case n.workers < n.b.opts.InFlight:
		n.workers++
		n.mu.Unlock()
		go n.work(g)
		return nil
	case len(n.queue) < queued:
		n.queue = append(n.queue, g)
		n.mu.Unlock()
		return nil
	}
	n.mu.Unlock()
	return errBusy
}

// work is a worker's life.
func (n *node) work(g *nodeRequest) {
	w := &worker{tasks: make(chan *nodeRequest, 1)}
	for ok := true; ok; {
		g.do()
		g, ok = n.next(w)
	}
}

// next returns the worker's next task, or false if it must end.
func (n *node) next(w *worker) (*nodeRequest, bool) {
	n.mu.Lock()
	if len(n.queue) > 0 {
		g := n.queue[0]
		n.queue[0] = nil
		n.queue = n.queue[1:]
		n.mu.Unlock()
		return g, true
	}
	if n.closed {
		n.leave()
		n.mu.Unlock()
		return nil, false
	}
	w.since = time.Now()
	n.idle = append(n.idle, w)
	if n.reaper == nil {
		n.reaper = time.AfterFunc(idleTime, n.reap)
	}
	n.mu.Unlock()
	g, ok := <-w.tasks
	return g, ok
}

// leave counts a worker out. n.mu is held.
func (n *node) leave() {
	n.workers--
	if n.closed && n.workers == 0 {
		close(n.gone)
	}
}

// reap ends the workers that were idle for long: those at the bottom of the stack.
func (n *node) reap() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	old := time.Now().Add(-idleTime)
	i := 0
	for i < len(n.idle) && !n.idle[i].since.After(old) {
		close(n.idle[i].tasks)
		n.workers--
		i++
	}
	n.idle = append([]*worker(nil), n.idle[i:]...)
	n.reaper = nil
	if n.workers > 0 {
		n.reaper = time.AfterFunc(idleTime, n.reap)
	}
}

// close ends the idle workers; the others end when they have done what is queued.
func (n *node) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	if n.reaper != nil {
		n.reaper.Stop()
	}
	for _, w := range n.idle {
		close(w.tasks)
		n.workers--
	}
	n.idle = nil
	if n.workers == 0 {
		close(n.gone)
	}
}

// admit says whether the node may be asked, and whether as a probe, whose
// answer nobody waits for.
func (n *node) admit() (ok, probe bool) {
	if !n.tripped.Load() {
		return true, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if now.Before(n.probeAt) {
		return false, false
	}
	n.probeAt = now.Add(n.pause)
	return true, true
}

// tripped returns the nodes that are skipped.
func (b *Backend) tripped() set {
	var s set
	for i, n := range b.nodes {
		if n.tripped.Load() {
			s.add(i)
		}
	}
	return s
}

// report tells the breaker how a request ended.
func (n *node) report(timedOut bool) {
	n.mu.Lock()
	was := n.tripped.Load()
	if timedOut {
		if n.timeouts == 0 {
			n.since = time.Now()
		}
		n.timeouts++
		if n.timeouts >= tripAfter && time.Since(n.since) >= tripTime {
			n.trip()
		}
	} else {
		n.timeouts, n.pause = 0, 0
		n.tripped.Store(false)
	}
	is := n.tripped.Load()
	n.mu.Unlock()
	switch {
	case is && !was:
		n.b.count.trips.Add(1)
		n.b.event(driver.Notice{Kind: driver.NoticeNodeSkipped, Node: n.name, Detail: fmt.Sprintf("%d requests in a row timed out: it is skipped until a probe succeeds", tripAfter)})
	case was && !is:
		n.b.event(driver.Notice{Kind: driver.NoticeNodeRestored, Node: n.name, Detail: "a probe succeeded: it is asked again"})
	}
}

// trip opens the breaker, or keeps it open for longer. n.mu is held.
func (n *node) trip() {
	if !n.tripped.Load() {
		n.pause = firstProbe
		n.probeAt = time.Now().Add(n.pause)
		n.tripped.Store(true)
		return
	}
	n.pause = min(2*n.pause, slowestTest)
}

// identify notes which process answers for the node, and compares it with the others
// when that changes: a server that is listed twice would vote twice.
func (n *node) identify(server string) {
	if known := n.server.Load(); server == "" || known != nil && *known == server {
		return
	}
	b := n.b
	b.servers.Lock()
	defer b.servers.Unlock()
	kept := server // the parameter stays on the stack as a rule
	n.server.Store(&kept)
	b.duplicate.Store(b.findDuplicate())
}

func (b *Backend) findDuplicate() *driver.RefusedError {
	for i, n := range b.nodes {
		s := n.server.Load()
		for _, other := range b.nodes[:i] {
			if o := other.server.Load(); s != nil && o != nil && *s == *o {
				return &driver.RefusedError{Reason: fmt.Sprintf("nodes %s and %s are the same server, which would vote twice: list it once", other.name, n.name)}
			}
		}
	}
	return nil
}
