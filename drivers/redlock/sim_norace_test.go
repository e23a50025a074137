//go:build !race

package redlock

// Of each kind: together more than ten thousand.
const defaultSchedules = 2100
