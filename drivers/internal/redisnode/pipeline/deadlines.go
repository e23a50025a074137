package pipeline

import (
	"context"
	"time"
)

// notify tells the caller of c that the call has ended.
func (l *Pipelines) notify(c *Call) {
	if c.then == nil {
		c.Wake <- struct{}{} // has room, because it is told once
		return
	}
	defer l.cfg.Calls.Done()
	c.then.Finished(c.result())
}

// leave ends a call without an answer, and reports whether it did. The call is then in doubt,
// or was not sent.
func (l *Pipelines) leave(c *Call, why error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.giveUp(c, why)
}

// giveUp is leave with l.mu held.
func (l *Pipelines) giveUp(c *Call, why error) bool {
	if c.timed == 0 {
		return false
	}
	l.untrack(c)
	c.done = make(chan struct{})
	switch {
	case c.state.CompareAndSwap(callQueued, callLeft):
		c.left = &notSent{why}
	case c.state.CompareAndSwap(callSent, callOverdue):
		c.left = why
	}
	return true
}

// expire ends the calls whose deadline has passed.
func (l *Pipelines) expire() {
	var over []*Call
	l.mu.Lock()
	now := time.Now()
	l.alarm = time.Time{}
	for i := 0; i < len(l.timed); {
		c := l.timed[i]
		if now.Before(c.due) || c.prolong() {
			l.expect(c.due, now)
			i++
		} else if l.giveUp(c, context.DeadlineExceeded) { // another call has taken its place
			over = append(over, c)
		}
	}
	l.mu.Unlock()
	for _, c := range over {
		l.notify(c)
	}
}

// track makes a call end at its deadline. The caller holds l.mu.
func (l *Pipelines) track(c *Call, now time.Time) {
	if c.then == nil && c.Wake == nil {
		c.Wake = make(chan struct{}, 1)
	}
	c.prolong()
	l.timed = append(l.timed, c)
	c.timed = len(l.timed)
	l.expect(c.due, now)
}

// expect sets the timer to a deadline, unless it fires earlier. Most calls are answered long
// before, so the timer is not set for each. The caller holds l.mu.
func (l *Pipelines) expect(deadline, now time.Time) {
	if deadline.Before(now) {
		deadline = now // a term that is over may say so by the zero time, at which no alarm is set
	}
	switch {
	case !l.alarm.IsZero() && !deadline.Before(l.alarm):
		return
	case l.timer == nil:
		l.timer = time.AfterFunc(deadline.Sub(now), l.expire)
	default:
		l.timer.Reset(deadline.Sub(now))
	}
	l.alarm = deadline
}

// untrack undoes track. The caller holds l.mu.
func (l *Pipelines) untrack(c *Call) {
	if c.timed == 0 {
		return
	}
	last := len(l.timed) - 1
	l.timed[c.timed-1] = l.timed[last]
	l.timed[c.timed-1].timed = c.timed
	l.timed[last] = nil
	l.timed = l.timed[:last]
	c.timed = 0
}
