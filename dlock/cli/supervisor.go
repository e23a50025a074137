package cli

import (
	"sync/atomic"
	"syscall"
	"time"
)

// A supervisor runs one command and ends it no later than its lease. It knows nothing of locks:
// it acts on the deadlines that it gets. On Unix it is a process of its own, the guard, so that
// the command dies if dlock is killed, and is stopped in time if dlock hangs or is stopped
// itself.

// The supervisor reads the deadlines whenever it wakes. Both processes share the memory that
// holds them, because a process that was stopped would read messages too late. Each is an
// instant on the machine's clock; zero: never.
type deadlines struct {
	term, kill atomic.Int64 // when SIGTERM and SIGKILL are sent
	keep       atomic.Int64 // the lock is kept until then if dlock is killed
}

// set stores the instants at which signals are sent. A reader that sees one of two changes
// sees the later SIGKILL.
func (d *deadlines) set(term, kill time.Duration) {
	d.kill.Store(int64(kill))
	d.term.Store(int64(term))
}

func (d *deadlines) get() (term, kill time.Duration) {
	return time.Duration(d.term.Load()), time.Duration(d.kill.Load())
}

// An order to the supervisor is a signal that it passes on to the command; SIGKILL: kill
// everything now.
type order = syscall.Signal

// A report of the supervisor: all that has happened so far.
type report struct {
	Pid       int    // the command runs
	Failed    string // it could not be started, and why
	Stopped   int    // it was stopped by this signal since the report before
	Termed    bool   // SIGTERM was sent at its deadline
	Killed    bool   // SIGKILL was sent
	Ended     bool   // it has ended, with Code or by Signal
	Code      int
	Signal    int
	Left      string // processes that the command left behind, which are waited for
	Gone      bool   // all processes that the supervisor waits for have ended
	Survivors string // processes that could not be killed
}

const (
	clockInterval = 250 * time.Millisecond // between two looks, in case the machine sleeps
	killInterval  = 5 * time.Millisecond
	killTimeout   = 10 * time.Second
	leftNotice    = 2 * time.Second // how long to wait for processes that the command left behind before reporting it
)

// supervisor is the state of a supervisor.
type supervisor struct {
	say     func(report)
	now     report
	console *console // of the command; nil: the process's own
	times   *deadlines
	noWait  bool // do not wait for the command's children
	tree    *processTree
	ending  syscall.Signal // the last signal passed on that ends a process
	ended   time.Duration  // when the command ended; zero: it runs
	killing time.Duration  // when it began; zero: not begun
}

// run runs the command, until it and its children have ended. If orders is closed dlock has
// ended, and run kills the command.
func (s *supervisor) run(argv, env []string, orders <-chan order) (dlockEnded bool) {
	if _, kill := s.times.get(); kill != 0 && machineNow() >= kill {
		s.say(report{Killed: true}) // before it began
		return false
	}
	tree, failed := startTree(s.console, argv, env)
	if failed != nil {
		s.say(report{Failed: failed.text, Code: failed.code})
		return false
	}
	s.tree, s.now.Pid = tree, tree.pid
	s.say(s.now)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case o, ok := <-orders:
			if !ok {
				orders, dlockEnded = nil, true
				s.end()
				break
			}
			s.obey(o)
		case <-s.tree.changed:
		case <-timer.C:
		}
		was := s.now
		more := s.look()
		if s.now != was {
			s.say(s.now)
			s.now.Stopped = 0
		}
		if !more {
			return dlockEnded
		}
		timer.Reset(s.next())
	}
}

func (s *supervisor) obey(o order) {
	switch o {
	case syscall.SIGKILL:
		s.end()
		return
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT:
		s.ending = o
	}
	s.tree.signal(o)
}

// end begins to kill the command.
func (s *supervisor) end() {
	if s.killing == 0 {
		s.killing = machineNow()
	}
}

// look takes the actions that are due, and reports whether there is anything left to watch.
func (s *supervisor) look() bool {
	now := machineNow()
	term, kill := s.times.get()
	if kill != 0 && now >= kill {
		s.end()
	}
	if term != 0 && now >= term && !s.now.Termed && s.killing == 0 {
		s.now.Termed = true
		s.tree.signal(syscall.SIGTERM)
	}
	if s.killing != 0 {
		s.now.Killed = true
		s.tree.kill()
	}
	left := s.tree.collect(&s.now)
	if s.tree.ended && s.ended == 0 {
		s.ended = now
		s.tree.orphan(s.ending)
	}
	switch {
	case !left, s.ended != 0 && s.noWait && s.killing == 0:
		s.now.Gone = true
		return false
	case s.killing != 0 && now-s.killing > killTimeout:
		s.now.Survivors = s.tree.names()
		return false
	case s.ended != 0 && s.now.Left == "" && now-s.ended >= leftNotice:
		s.now.Left = s.tree.names()
	}
	return true
}

// next is how long to wait for the next look.
func (s *supervisor) next() time.Duration {
	if s.killing != 0 {
		return killInterval
	}
	d, now := clockInterval, machineNow()
	term, kill := s.times.get()
	for _, t := range []time.Duration{term, kill} {
		if t > now {
			d = min(d, t-now)
		}
	}
	return d
}
