package redlock

import (
	"github.com/redlock-go/redlock/redlocktest/server"
)

import "time"

// With Mutation and its values, tests on real servers can take out the write-back, the final
// look at the clock, or the agreement of the nodes' clocks.
type Mutation = mutation

const (
	NoWriteBack  = noWriteBack
	NoValidity   = noValidity
	NoClockCheck = noClockCheck
)

// Sabotage takes these parts out of the algorithm.
func Sabotage(b *Backend, m Mutation) { mutate(b, m) }

// Stall makes f run between a bid's last answer and its last step, the look at the clock.
func Stall(b *Backend, f func()) { stall(b, f) }

// Grace is how much longer than the TTL a node keeps a key, with default options.
func Grace(n int) time.Duration { return derive(n, DefaultGuard, DefaultClockAllowance, 1).Grace }

// LongestLook is how long a client that needs no time looks whether another one declares nodes new.
const LongestLook = mostLooks * lookAgain

// Amount is how much a test does: the whole of it in the deep depth only.
func Amount(quick, deep int) int {
	if server.IsDeep() {
		return deep
	}
	return quick
}
