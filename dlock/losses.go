package dlock

import (
	"sync"
	"time"
)

// losses watches the Lost channels of leases: one goroutine per distinct channel, since
// leases share theirs.
type losses struct {
	mu      sync.Mutex
	watches map[<-chan struct{}]*watch
	sweep   *time.Timer
	pending bool // the timer is set
	running sync.WaitGroup
}

type watch struct {
	leases map[*Lease]struct{}
	quit   chan struct{}
	idle   bool // had no lease at the last sweep
}

// idleWatch is how long a channel without leases is still watched: its session is likely to get
// the next lease soon.
const idleWatch = time.Second

// add watches lost for l.
func (ls *losses) add(lost <-chan struct{}, l *Lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	w := ls.watches[lost]
	if w == nil {
		w = &watch{leases: map[*Lease]struct{}{}, quit: make(chan struct{})}
		if ls.watches == nil {
			ls.watches = map[<-chan struct{}]*watch{}
		}
		ls.watches[lost] = w
		ls.running.Go(func() { ls.run(lost, w) })
		ls.arm()
	}
	w.leases[l] = struct{}{}
	w.idle = false
}

// drop ends the watching of lost for l.
func (ls *losses) drop(lost <-chan struct{}, l *Lease) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if w := ls.watches[lost]; w != nil {
		delete(w.leases, l)
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
	leases := w.leases
	w.leases = nil
	ls.mu.Unlock()
	for l := range leases {
		l.lookForLoss()
	}
}

// lookForLoss ends the lease if the backend reports that it is gone. Otherwise another lease with
// the same channel is, and the lease has a new one.
func (l *Lease) lookForLoss() {
	l.mu.Lock()
	over := l.reported()
	if l.err == nil && l.lost != nil {
		l.c.losses.add(l.lost, l)
	}
	l.mu.Unlock()
	over.run()
}

// reported ends the lease if the backend reports that it is gone. l.mu is held.
func (l *Lease) reported() ending {
	for l.err == nil && isClosed(l.lost) {
		last := l.lost
		if l.lost = l.held.Grant().Lost; l.lost == last {
			return l.finishLocked(errReported)
		}
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

var errReported = lost("the backend reports that it is gone")

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
		if len(w.leases) > 0 {
			continue
		}
		if !w.idle {
			w.idle = true
			continue
		}
		close(w.quit)
		delete(ls.watches, lost)
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
