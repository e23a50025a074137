package redlock

import "time"

// Mutation and its values let the tests on real servers take the write-back, the final
// look at the clock and the agreement of the nodes' clocks out.
type Mutation = mutation

const (
	NoWriteBack  = noWriteBack
	NoValidity   = noValidity
	NoClockCheck = noClockCheck
)

// Sabotage takes parts of the algorithm out.
func Sabotage(b *Backend, m Mutation) { mutate(b, m) }

// Stall makes f run between a bid's last answer and its last act, the look at the clock.
func Stall(b *Backend, f func()) { stall(b, f) }

// Grace is how much longer than the TTL a node keeps a key, with the default settings.
func Grace(n int) time.Duration { return derive(n, DefaultGuard, DefaultClockAllowance, 1).Grace }
