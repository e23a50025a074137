//go:build race

package redlock

// Of each kind; the race detector makes them ten times slower.
const defaultSchedules = 150

// Crowds are how many processes compete for one key. A process under the race detector needs a hundred megabytes.
var Crowds = []int{2, 8, 32}
