package redlocktest

import (
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

var fenceCases = []testCase{
	{name: "none", do: noFence},
	{name: "rises", needs: driver.FeatureFencing, do: fenceRises},
	{name: "rises-concurrently", needs: driver.FeatureFencing, do: fenceRisesConcurrently},
	{name: "comparable", needs: driver.FeatureFencing, do: fenceComparable},
}

func noFence(r *run) {
	if r.info.Features.Has(driver.FeatureFencing) {
		r.skip("%s has tokens", r.info.Name)
	}
	l := r.grant(r.client(), driver.Request{Key: r.key()})
	if g := l.Grant(); g.Fence != 0 {
		r.record(tokens, "Fencing is not among the features %v, and a grant has token %d", r.info.Features, g.Fence)
	}
	r.release(l)
}

func fenceRises(r *run) {
	clients := r.clients(3)
	key, last := r.key(), uint64(0)
	for i := range 30 {
		l := r.grant(clients[i%len(clients)], driver.Request{Key: key})
		r.rises(last, l.Grant().Fence)
		last = l.Grant().Fence
		r.renew(l, driver.Renewal{})
		if g := l.Grant(); g.Fence != last {
			r.fatal(tokens, "the token of one lease changed from %d to %d", last, g.Fence)
		}
		r.release(l)
	}
}

// fenceRisesConcurrently: among owners who race for a key, no token comes twice, and
// if one was returned before another's attempt began, it is smaller.
func fenceRisesConcurrently(r *run) {
	clients, key := r.clients(4), r.key()
	var mu sync.Mutex
	last, seen := uint64(0), map[uint64]bool{}
	r.together(12, func(i int) {
		for range 5 {
			mu.Lock()
			before := last
			mu.Unlock()
			l := r.eventually(clients[i%len(clients)], driver.Request{Key: key, Wait: true})
			fence := l.Grant().Fence
			r.rises(before, fence)
			mu.Lock()
			last = max(last, fence)
			again := seen[fence]
			seen[fence] = true
			mu.Unlock()
			if again {
				r.fatal(tokens, "token %d was given twice", fence)
			}
			r.release(l)
		}
	})
}

func fenceComparable(r *run) {
	least := uint64(time.Now().Add(-allowance).UnixMicro())
	for range 3 {
		l := r.grant(r.client(), driver.Request{Key: r.key()})
		switch fence := l.Grant().Fence; {
		case fence < least:
			r.fatal(tokens, "the first token of a key is %d, less than the Unix time in microseconds, even %v ago: %d", fence, allowance, least)
		case fence > driver.MaxFence:
			r.fatal(tokens, "a token is %d, more than %d", fence, uint64(driver.MaxFence))
		}
		r.release(l)
	}
}
