//go:build unix

// Package paired compares the cost of two ways to do the same work, on a machine that may be
// busy: in one run, in turns, by processor time.
package paired

import (
	"fmt"
	"math"
	"slices"
	"syscall"
	"time"
)

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
	return RatioOf(cpus), RatioOf(walls)
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

// A Ratio is the cost of one way divided by the cost of the other: the median of several
// rounds, with its 95 % confidence interval by the sign test (Conover, Practical Nonparametric
// Statistics, 3.2).
type Ratio struct{ Median, Low, High float64 }

// RatioOf returns the median of the rounds' ratios, of which there must be at least one, and
// its interval.
func RatioOf(rounds []float64) Ratio {
	all := slices.Sorted(slices.Values(rounds))
	n := len(all)
	// The normal approximation of the binomial distribution, rounded outwards.
	k := max(0, int(math.Floor(float64(n)/2-0.98*math.Sqrt(float64(n)))))
	return Ratio{Median: (all[n/2] + all[(n-1)/2]) / 2, Low: all[k], High: all[n-1-k]}
}

// String returns "1.030 (1.010 to 1.050)".
func (r Ratio) String() string { return fmt.Sprintf("%.3f (%.3f to %.3f)", r.Median, r.Low, r.High) }
