// Package machine describes the measuring machine, and how much other programs use it meanwhile.
package machine

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/process"
)

// Describe returns the system, the number of processors and the version of Go.
func Describe() string {
	text := fmt.Sprintf("%s, %s/%s, %d processors", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	if info, err := cpu.Info(); err == nil && len(info) > 0 && info[0].ModelName != "" {
		text += " (" + strings.TrimSpace(info[0].ModelName) + ")"
	}
	return text
}

// Libraries returns the versions of those of this program's modules whose paths contain one of
// these names.
func Libraries(names ...string) (list []string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	for _, m := range info.Deps {
		for _, name := range names {
			if strings.Contains(m.Path, name) && !strings.HasSuffix(m.Path, "compat") {
				list = append(list, strings.TrimPrefix(m.Path, "github.com/")+" "+m.Version)
			}
		}
	}
	return list
}

// A Moment has the processor time, in seconds, that all programs have used since boot, and that
// this process and its descendants have used.
type Moment struct {
	at        time.Time
	busy, own float64
	ok        bool
}

// Now returns the current Moment.
func Now() Moment {
	m := Moment{at: time.Now()}
	times, err := cpu.Times(false)
	if err == nil && len(times) > 0 {
		m.busy = -times[0].Idle - times[0].Iowait // only differences count; the busy times themselves are sampled
		m.own, m.ok = own()
	}
	return m
}

// Busy returns the share of all processors that was busy since an earlier moment.
func (m Moment) Busy(before Moment) float64 {
	return max(1+(m.busy-before.busy)/m.capacity(before), 0)
}

// capacity is the time of all processors since an earlier moment, in seconds.
func (m Moment) capacity(before Moment) float64 {
	return m.at.Sub(before.at).Seconds() * float64(runtime.NumCPU())
}

// Foreign returns how many processors other programs used on average since an earlier moment,
// such as 0.7 of 2. It is negative if the system does not tell.
func (m Moment) Foreign(before Moment) float64 {
	if !m.ok || !before.ok {
		return -1
	}
	return max(m.Busy(before)*float64(runtime.NumCPU())-(m.own-before.own)/m.at.Sub(before.at).Seconds(), 0)
}

// own adds up the processor time of this process and its descendants, including those that have
// ended. Only Linux tells.
func own() (seconds float64, ok bool) {
	parents := map[int32]int32{}
	pids, err := process.Pids()
	if err != nil {
		return 0, false
	}
	for _, pid := range pids {
		if p, err := process.NewProcess(pid); err == nil {
			parents[pid], _ = p.Ppid() // a process that has ended has none
		}
	}
	self := int32(os.Getpid())
	for pid := range parents {
		for at, steps := pid, 0; at > 1 && steps < 20; at, steps = parents[at], steps+1 {
			if at == self {
				t, told := used(pid)
				seconds, ok = seconds+t, ok || told
				break
			}
		}
	}
	return seconds, ok
}

// used reads the processor time of a process and of its children that have ended (see proc(5)).
func used(pid int32) (seconds float64, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // after the name
	const first, last, perSecond = 11, 15, 100    // utime, stime, cutime, cstime
	fields := strings.Fields(rest)
	if len(fields) < last {
		return 0, false
	}
	for _, f := range fields[first:last] {
		ticks, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return 0, false
		}
		seconds += ticks / perSecond
	}
	return seconds, true
}
