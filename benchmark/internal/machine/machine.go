// Package machine describes the machine that measures, and how much others use it meanwhile.
package machine

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/process"
)

// Describe returns the system, the processors and the version of Go.
func Describe() string {
	text := fmt.Sprintf("%s, %s/%s, %d processors", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	if info, err := cpu.Info(); err == nil && len(info) > 0 && info[0].ModelName != "" {
		text += " (" + strings.TrimSpace(info[0].ModelName) + ")"
	}
	return text
}

// A Moment is what all processors have done up to now, in seconds.
type Moment struct{ busy, all float64 }

// Busy returns this moment. It is zero where the system does not tell.
func Busy() Moment {
	times, err := cpu.Times(false)
	if err != nil || len(times) == 0 {
		return Moment{}
	}
	t := times[0]
	idle := t.Idle + t.Iowait
	busy := t.User + t.System + t.Nice + t.Irq + t.Softirq + t.Steal
	return Moment{busy, busy + idle}
}

// Since returns which share of all processors was busy since another moment.
func (m Moment) Since(before Moment) float64 {
	if m.all <= before.all {
		return 0
	}
	return (m.busy - before.busy) / (m.all - before.all)
}

// CPU returns the processor time that this process has used.
func CPU() time.Duration { return used(int32(os.Getpid())) }

func used(pid int32) time.Duration {
	p, err := process.NewProcess(pid)
	if err != nil {
		return 0
	}
	t, err := p.Times()
	if err != nil {
		return 0
	}
	return time.Duration((t.User + t.System) * float64(time.Second))
}

// A Load watches what others use: the processor time of everything that is neither this process nor
// one that it started. Stop ends it.
type Load struct {
	end    chan struct{}
	done   sync.WaitGroup
	began  Moment
	own    map[int32]time.Duration // the last that was seen of each process of ours
	before map[int32]time.Duration // when it was first seen
}

// Watch begins.
func Watch() *Load {
	l := &Load{end: make(chan struct{}), own: map[int32]time.Duration{}, before: map[int32]time.Duration{}}
	l.look()
	for pid, t := range l.own {
		l.before[pid] = t
	}
	l.began = Busy()
	l.done.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				l.look()
			case <-l.end:
				return
			}
		}
	})
	return l
}

// look reads the processor time of this process and of those under it.
func (l *Load) look() {
	parents := map[int32]int32{}
	pids, err := process.Pids()
	if err != nil {
		return
	}
	for _, pid := range pids {
		if p, err := process.NewProcess(pid); err == nil {
			parents[pid], _ = p.Ppid() // one that has gone has none
		}
	}
	self := int32(os.Getpid())
	for pid := range parents {
		for at, steps := pid, 0; at > 1 && steps < 20; at, steps = parents[at], steps+1 {
			if at == self {
				l.own[pid] = max(used(pid), l.own[pid])
				break
			}
		}
	}
}

// Stop ends the watch and returns how many processors others used on average: 0.7 of 2, say. It is
// below zero where the system does not tell.
func (l *Load) Stop() float64 {
	close(l.end)
	l.done.Wait()
	l.look()
	now := Busy()
	if now.all <= l.began.all {
		return -1
	}
	busy := now.busy - l.began.busy
	for pid, t := range l.own {
		busy -= (t - l.before[pid]).Seconds()
	}
	return max(busy, 0) / (now.all - l.began.all) * float64(runtime.NumCPU())
}
