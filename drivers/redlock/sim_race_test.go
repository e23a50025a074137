//go:build race

package redlock

// Race reports whether the race detector runs. It makes computations ten times slower and finds
// little in them, so all.bash also runs these tests without it.
const Race = true
