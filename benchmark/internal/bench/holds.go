package bench

import (
	"context"
	"errors"
	"slices"
	"time"
)

// A hold is a time for which a client had the lock, by the machine's clock, which all
// of its processes share: nanoseconds since 1970.
type hold struct {
	From, To int64
}

// gaveUp is how long before its deadline a client may give up: it knows that what it
// would do next comes too late.
const gaveUp = 100 * time.Millisecond

// want lets a client lock one key, hold it and let go, over and over, until the time.
// The end is no failure.
func want(ctx context.Context, l Locker, key string, length time.Duration, until time.Time) (holds []hold, err error) {
	work, stop := context.WithDeadline(ctx, until)
	defer stop()
	for work.Err() == nil {
		h, err := l.Lock(work, key, true)
		if err != nil {
			if work.Err() != nil || errors.Is(err, context.DeadlineExceeded) && time.Until(until) < gaveUp {
				return holds, nil
			}
			return holds, err
		}
		from := time.Now()
		time.Sleep(length)
		holds = append(holds, hold{from.UnixNano(), time.Now().UnixNano()})
		if err := h.Unlock(); err != nil {
			return holds, err
		}
	}
	return holds, nil
}

// A relay is what the holds of all clients say of how the lock went round.
type relay struct {
	got      []int           // locks, by client
	handoffs []time.Duration // from one client's last release to another's grant
	passings []time.Duration // from its first release
	overlaps int
	all      int // handoffs, those before the time as well
}

// runRelay puts the holds in order. Only those that began after the time count.
func runRelay(clients [][]hold, from time.Time) *relay {
	type turn struct {
		hold
		client int
	}
	var turns []turn
	for i, holds := range clients {
		for _, s := range holds {
			turns = append(turns, turn{s, i})
		}
	}
	slices.SortFunc(turns, func(a, b turn) int { return int(a.From - b.From) })
	r := &relay{got: make([]int, len(clients))}
	end := int64(0)   // of the longest so far
	first := int64(0) // release of the client who has it or had it last, in a row
	for i, l := range turns {
		if l.From < end {
			r.overlaps++
		}
		end = max(end, l.To)
		other := i > 0 && turns[i-1].client != l.client
		if other {
			r.all++
		}
		if l.From >= from.UnixNano() {
			r.got[l.client]++
			if other {
				r.handoffs = append(r.handoffs, time.Duration(l.From-turns[i-1].To))
				r.passings = append(r.passings, time.Duration(l.From-first))
			}
		}
		if other || i == 0 {
			first = l.To
		}
	}
	return r
}
