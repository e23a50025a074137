package dlock

import (
	"sync"
	"time"
)

// losses watches the Lost channels of leases: one goroutine per distinct channel, since
// leases share theirs.
type losses struct {
	look    func() // looks at all leases
	mu      sync.Mutex
	watches map[<-chan struct{}]*watch
	sweep   *time.Timer
	pending bool // the timer is set
	running sync.WaitGroup
}

type watch struct {
	leases int
	quit   chan struct{}
	idle   bool // had no lease at the last sweep
}

// idleWatch is how long a channel without leases is still watched: its session is likely to get
// the next lease soon.
const idleWatch = time.Second

// add watches lost for one lease more.
func (ls *losses) add(lost <-chan struct{}) {
	if lost == nil {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w := ls.watches[lost]
	if w == nil {
		w = &watch{quit: make(chan struct{})}
		ls.watches[lost] = w
		ls.running.Go(func() { ls.run(lost, w) })
		ls.arm()
	}
	w.leases++
	w.idle = false
}

// drop ends the watching of lost for one lease.
func (ls *losses) drop(lost <-chan struct{}) {
	if lost == nil {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if w := ls.watches[lost]; w != nil {
		w.leases--
	}
}

func (ls *losses) run(lost <-chan struct{}, w *watch) {
	select {
	case <-w.quit:
		return
	case <-lost:
	}
	ls.mu.Lock()
	if ls.watches[lost] == w {
		delete(ls.watches, lost)
	}
	ls.mu.Unlock()
	ls.look()
}

// lookForLosses ends the leases that the backend reports to be gone.
func (c *Client) lookForLosses() {
	for _, l := range c.holding() {
		l.mu.Lock()
		over := l.reported()
		l.mu.Unlock()
		over.run()
	}
}

// reported ends the lease if the backend reports that it is gone. If another lease with the same
// channel is, this one has a new channel. l.mu is held.
func (l *Lease) reported() ending {
	for l.err == nil && isClosed(l.lost) {
		last := l.lost
		if l.lost = l.held.Grant().Lost; l.lost == last {
			return l.finishLocked(lost("the backend reports that it is gone"))
		}
		l.c.losses.drop(last)
		l.c.losses.add(l.lost)
	}
	return ending{}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// arm sets the timer that ends the watches without leases.
func (ls *losses) arm() {
	if ls.pending {
		return
	}
	ls.pending = true
	if ls.sweep == nil {
		ls.sweep = time.AfterFunc(idleWatch, ls.clean)
	} else {
		ls.sweep.Reset(idleWatch)
	}
}

func (ls *losses) clean() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.pending = false
	for lost, w := range ls.watches {
		switch {
		case w.leases > 0:
		case !w.idle:
			w.idle = true
		default:
			close(w.quit)
			delete(ls.watches, lost)
		}
	}
	if len(ls.watches) > 0 {
		ls.arm()
	}
}

// stop ends all watching, and waits for it.
func (ls *losses) stop() {
	defer ls.running.Wait()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for lost, w := range ls.watches {
		close(w.quit)
		delete(ls.watches, lost)
	}
	if ls.sweep != nil {
		ls.sweep.Stop()
	}
}
