//go:build race

package redlock

// Of each kind; the race detector makes them ten times slower.
const defaultSchedules = 300
