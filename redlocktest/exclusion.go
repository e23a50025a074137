package redlocktest

import (
	"sync"

	"github.com/redlock-go/redlock/driver"
)

var exclusionCases = []testCase{
	{name: "race", do: func(r *run) { r.race(5, r.clients(1)) }},
	{name: "race-clients", do: func(r *run) { r.race(5, r.clients(5)) }},
	{name: "reentrancy", do: reentrancy},
}

const racers = 100

func (r *run) race(rounds int, clients []driver.Backend) {
	for decided := 0; decided < rounds; {
		if r.raceOnce(clients) {
			decided++
		} else if !r.pause(poll) {
			r.fatal(oneWins, "of %d attempts on a free key none won, again and again, and some ended in nothing", racers)
		}
	}
}

// raceOnce lets a hundred owners try one key at once. It returns false if the race proves
// nothing: no owner won, and at least one got no answer.
func (r *run) raceOnce(clients []driver.Backend) bool {
	key := r.key()
	leases, errs := make([]*lease, racers), make([]error, racers)
	var ready sync.WaitGroup
	ready.Add(racers)
	r.together(racers, func(i int) {
		ready.Done()
		ready.Wait()
		leases[i], errs[i] = r.try(clients[i%len(clients)], driver.Request{Key: key})
	})
	var winners []*lease
	unanswered := 0
	for i, l := range leases {
		switch v := r.saw(errs[i]); v {
		case granted:
			winners = append(winners, l)
		case held:
		case unknown, later:
			unanswered++
			r.note("a racer got %v: %v", v, errs[i])
		default:
			r.record(fourOutcomes, "of %d attempts on a free key one gives %v: %v", racers, v, errs[i])
		}
	}
	switch {
	case len(winners) > 1:
		r.winners(key, winners)
	case len(winners) == 0 && unanswered > 0:
		return false
	case len(winners) == 0:
		r.fatal(oneWins, "of %d attempts on a free key none won, and all say that it is held", racers)
	}
	r.refuse(clients[0], driver.Request{Key: key}, winners[0])
	r.release(winners[0])
	r.free(clients[len(clients)-1], key) // the losers left no lock
	return true
}

func (r *run) winners(key string, winners []*lease) {
	for _, l := range winners {
		if !r.valid(l) {
			r.startOver("a lease ended during the race for it")
		}
	}
	r.fatal(exclusion, "%d of %d have the lock of %q at once, with tokens %d and %d among theirs",
		len(winners), racers, short(key), winners[0].Grant().Fence, winners[1].Grant().Fence)
}

// reentrancy asks twice from one goroutine of one process, with owners that differ only in
// their random part.
func reentrancy(r *run) {
	b, key := r.client(), r.key()
	owner := r.owner()
	l := r.grant(b, driver.Request{Key: key, Owner: owner})
	for range 5 {
		again, err := r.try(b, driver.Request{Key: key})
		if r.saw(err) == granted && r.valid(l) {
			r.fatal(noReentrancy, "the process that has the key got it again, with tokens %d and %d", l.Grant().Fence, again.Grant().Fence)
		}
	}
	r.holds(b, key, l)
	r.release(l)
	r.release(r.again(b, key))
}
