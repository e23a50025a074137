//go:build !race

package redlock

// Of each kind: together more than ten thousand.
const defaultSchedules = 1050

const mostBudget = 1 << 30

// Crowds are how many processes compete for one key.
var Crowds = []int{2, 8, 32, 128}
