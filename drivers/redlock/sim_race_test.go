//go:build race

package redlock

// Race reports whether the race detector runs. It makes what computes ten times slower, and
// has little to find there: all.bash runs that without it as well.
const Race = true
