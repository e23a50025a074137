package cli

import (
	"syscall"
	"time"
)

// A supervisor runs one command and sees to it that the command ends no later than its
// lease. It knows nothing of locks: it is told times, and obeys. On Unix it is a process
// of its own, the guard, so that the command dies if we are killed, and is stopped in
// time if we hang or are stopped ourselves.

// An order tells the supervisor what to do.
type order struct {
	Times      bool          // Term and Kill are given
	Term, Kill time.Duration // when to send SIGTERM and SIGKILL, on the machine's clock; zero: never
	Signal     int           // passed on to the command
	End        bool          // kill everything now
}

// A report tells what happened; one thing each.
type report struct {
	Pid       int    // the command runs
	Failed    string // it could not be started, and why
	Stopped   int    // it was stopped by this signal
	Termed    bool   // SIGTERM was sent, since it was time
	Killed    bool   // SIGKILL was sent
	Ended     bool   // it has ended, with Code or by Signal
	Code      int
	Signal    int
	Left      bool   // with Ended: it left processes behind
	Gone      bool   // nothing is left of it
	Survivors string // processes that could not be killed
}

const (
	clockInterval = 250 * time.Millisecond // between two looks at the clock, in case the machine sleeps
	killInterval  = 5 * time.Millisecond
	killTimeout   = 10 * time.Second
)

// supervisor is the state of one.
type supervisor struct {
	say        func(report)
	console    *console // of the command; nil: the process's own
	tree       *processTree
	term, kill time.Duration
	termed     bool
	killing    time.Duration // since when; zero: not
}

// run runs the command, from its start to when nothing is left of it. The first order is
// to hold the times. When orders is closed our master has gone, and so does the command.
func (w *supervisor) run(argv, env []string, orders <-chan order) {
	first, ok := <-orders
	if !ok {
		return
	}
	w.obey(first)
	if w.killing != 0 || w.kill != 0 && machineNow() >= w.kill {
		w.say(report{Killed: true}) // before it began
		return
	}
	var failed *exitError
	if w.tree, failed = startTree(w.console, argv, env); failed != nil {
		w.say(report{Failed: failed.text, Code: failed.code})
		return
	}
	w.say(report{Pid: w.tree.pid})
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case o, ok := <-orders:
			if !ok {
				orders = nil
				w.end()
				break
			}
			w.obey(o)
		case <-w.tree.changed:
		case <-timer.C:
		}
		if !w.look() {
			return
		}
		timer.Reset(w.next())
	}
}

func (w *supervisor) obey(o order) {
	switch {
	case o.End:
		w.end()
	case o.Signal != 0 && w.tree != nil:
		w.tree.signal(syscall.Signal(o.Signal))
	case o.Times:
		w.term, w.kill = o.Term, o.Kill
	}
}

// end begins to kill.
func (w *supervisor) end() {
	if w.killing != 0 {
		return
	}
	w.killing = machineNow()
	w.say(report{Killed: true})
}

// look does what is due, and reports whether there is anything left to watch.
func (w *supervisor) look() bool {
	now := machineNow()
	if w.kill != 0 && now >= w.kill {
		w.end()
	}
	if w.term != 0 && now >= w.term && !w.termed && w.killing == 0 {
		w.termed = true
		w.tree.signal(syscall.SIGTERM)
		w.say(report{Termed: true})
	}
	if w.killing != 0 {
		w.tree.kill()
	}
	if !w.tree.collect(w.say) {
		w.say(report{Gone: true})
		return false
	}
	if w.killing != 0 && now-w.killing > killTimeout {
		w.say(report{Survivors: w.tree.names()})
		return false
	}
	return true
}

// next is how long to wait for the next look.
func (w *supervisor) next() time.Duration {
	if w.killing != 0 {
		return killInterval
	}
	d := time.Hour
	if w.tree.polled() {
		d = clockInterval
	}
	now := machineNow()
	for _, t := range []time.Duration{w.kill, w.term} {
		if t != 0 && (t != w.term || !w.termed) {
			d = min(d, clockInterval, max(t-now, 0))
		}
	}
	return d
}
