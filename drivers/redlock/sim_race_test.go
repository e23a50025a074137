//go:build race

package redlock

// Of each kind; the race detector makes them ten times slower.
const defaultSchedules = 75

// A part of the algorithm that takes more schedules to miss is missed without the race detector.
const mostBudget = 2000

// Crowds are how many processes compete for one key. A process under the race detector needs a hundred megabytes.
var Crowds = []int{2, 8, 32}
