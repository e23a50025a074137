//go:build unix

// Package paired compares what two ways of doing the same cost, on a machine that is busy with
// other things: in one run, in turns, by processor time.
package paired

import (
	"fmt"
	"math"
	"slices"
	"syscall"
	"time"
)

// A Ratio is what the second way cost, the first being 1: the median of the pairs, and its
// interval of 95 % by the sign test (Conover, Practical Nonparametric Statistics, 3.2).
type Ratio struct{ Median, Low, High float64 }

// String returns "1.03 (1.01 to 1.05)".
func (r Ratio) String() string { return fmt.Sprintf("%.3f (%.3f to %.3f)", r.Median, r.Low, r.High) }

// Compare runs a and b in pairs, of which every other one begins with b, and returns the ratios of
// the processor time that is read with processor, and of the time that passed. Both do the same
// amount of work each time.
func Compare(pairs int, processor func() time.Duration, a, b func()) (used, passed Ratio) {
	var cpus, walls []float64
	for i := range pairs {
		ofA, ofB := cost{processor: processor}, cost{processor: processor}
		if i%2 == 0 {
			ofA.measure(a)
			ofB.measure(b)
		} else {
			ofB.measure(b)
			ofA.measure(a)
		}
		cpus = append(cpus, ofB.cpu.Seconds()/ofA.cpu.Seconds())
		walls = append(walls, ofB.wall.Seconds()/ofA.wall.Seconds())
	}
	return ratio(cpus), ratio(walls)
}

type cost struct {
	processor func() time.Duration
	cpu, wall time.Duration
}

func (c *cost) measure(f func()) {
	before, start := c.processor(), time.Now()
	f()
	c.wall = time.Since(start)
	c.cpu = c.processor() - before
}

// Processor is the processor time that this process has used.
func Processor() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails for bad arguments alone
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func ratio(all []float64) Ratio {
	slices.Sort(all)
	n := len(all)
	// The normal approximation of the binomial distribution, rounded outwards.
	k := max(0, int(math.Floor(float64(n)/2-0.98*math.Sqrt(float64(n)))))
	return Ratio{Median: (all[n/2] + all[(n-1)/2]) / 2, Low: all[k], High: all[n-1-k]}
}
