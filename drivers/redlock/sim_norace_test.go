//go:build !race

package redlock

// Race reports whether the race detector runs.
const Race = false
