//go:build unix

// Package paired compares the cost of two ways to do the same work, on a machine that may be
// busy: in one run, in turns, by processor time.
package paired

import (
	"syscall"
	"time"

	"github.com/redlock-go/redlock/redlocktest/paired"
)

// Compare runs a and b in pairs, of which every other one begins with b, and returns the ratios of
// the processor time that is read with processor, and of the time that passed. Both do the same
// amount of work each time.
func Compare(pairs int, processor func() time.Duration, a, b func()) (used, passed paired.Ratio) {
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
	return paired.RatioOf(cpus), paired.RatioOf(walls)
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
