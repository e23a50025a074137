// Package machine describes the measuring machine, and how much other programs use it meanwhile.
package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// Describe returns the system, the number of processors and the version of Go.
func Describe() string {
	text := fmt.Sprintf("%s, %s/%s, %d processors", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	info, _ := os.ReadFile("/proc/cpuinfo") // Linux alone has it
	_, model, ok := strings.Cut(string(info), "model name")
	if model, _, _ = strings.Cut(model, "\n"); ok {
		text += " (" + strings.Trim(model, "\t: ") + ")"
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
	idle, own float64
	ok        bool // only Linux tells
}

// Now returns the current Moment.
func Now() Moment {
	m := Moment{at: time.Now()}
	stat, _ := os.ReadFile("/proc/stat")
	first, _, _ := strings.Cut(string(stat), "\n")
	if times := strings.Fields(first); len(times) > 5 { // cpu, user, nice, system, idle, iowait: see proc(5)
		m.idle, m.own, m.ok = ticks(times[4:6]...), own(), true // the busy times themselves are sampled
	}
	return m
}

// Busy returns the share of all processors that was busy since an earlier moment.
func (m Moment) Busy(before Moment) float64 {
	return max(1-(m.idle-before.idle)/(m.at.Sub(before.at).Seconds()*float64(runtime.NumCPU())), 0)
}

// Foreign returns how many processors other programs used on average since an earlier moment,
// such as 0.7 of 2. It is negative if the system does not tell.
func (m Moment) Foreign(before Moment) float64 {
	if !m.ok || !before.ok {
		return -1
	}
	return max(m.Busy(before)*float64(runtime.NumCPU())-(m.own-before.own)/m.at.Sub(before.at).Seconds(), 0)
}

// own adds up the processor time, in seconds, of this process and its descendants, including
// those that have ended.
func own() (seconds float64) {
	type process struct {
		parent string
		used   float64
	}
	all := map[string]process{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // fails for a bad pattern alone
	for _, file := range files {
		stat, _ := os.ReadFile(file) // a process that has ended has none
		_, rest, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(rest); len(f) > 15 { // after the name: 1 is the parent; 11 to 14 are utime, stime, cutime, cstime
			all[filepath.Base(filepath.Dir(file))] = process{f[1], ticks(f[11:15]...)}
		}
	}
	self := strconv.Itoa(os.Getpid())
	for pid, p := range all {
		for at, steps := pid, 0; at != "" && steps < 20; at, steps = all[at].parent, steps+1 {
			if at == self {
				seconds += p.used
				break
			}
		}
	}
	return seconds
}

// ticks adds up times, in seconds.
func ticks(times ...string) (seconds float64) {
	const perSecond = 100
	for _, t := range times {
		n, _ := strconv.ParseFloat(t, 64) // the kernel writes numbers
		seconds += n / perSecond
	}
	return seconds
}
