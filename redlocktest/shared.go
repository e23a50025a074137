package redlocktest

import (
	"github.com/redlock-go/redlock/driver"
)

var sharedCases = []testCase{
	{name: "many", needs: driver.FeatureShared, do: sharedMany},
	{name: "excluded", needs: driver.FeatureShared, do: sharedExcluded},
	{name: "upgrade", needs: driver.FeatureShared, do: sharedUpgrade},
	{name: "stale", needs: driver.FeatureShared, do: sharedStale},
	{name: "race", needs: driver.FeatureShared, do: sharedRace},
}

func (r *run) share(b driver.Backend, key string) driver.Lease {
	return r.grant(b, driver.Request{Key: key, Mode: driver.Shared})
}

// sharedMany: many share, exclusive keeps out until the last of them has gone.
func sharedMany(r *run) {
	clients, key := r.clients(3), r.key()
	seen := map[uint64]bool{}
	last := uint64(0)
	var leases []driver.Lease
	for i := range 12 {
		l := r.share(clients[i%len(clients)], key)
		fence := l.Grant().Fence
		if r.info.Features.Has(driver.FeatureFencing) && seen[fence] {
			r.fatal(tokens, "two shared leases have token %d", fence)
		}
		seen[fence] = true
		r.rises(last, fence)
		last = fence
		leases = append(leases, l)
	}
	for i, l := range leases {
		r.keepsOut(clients[(i+1)%len(clients)], key, l)
		r.renew(l, driver.Renewal{})
		r.release(l)
	}
	l := r.grant(clients[0], driver.Request{Key: key})
	r.rises(last, l.Grant().Fence)
	r.release(l)
}

// keepsOut is refuse with the rule on sharing.
func (r *run) keepsOut(b driver.Backend, key string, holder driver.Lease) {
	_, err := r.try(b, driver.Request{Key: key})
	if r.saw(err) == granted && r.valid(holder) {
		r.fatal(sharing, "an exclusive lock was granted beside a shared one")
	}
	r.refuse(b, driver.Request{Key: key}, holder)
}

func sharedExcluded(r *run) {
	a, b := r.pair()
	key := r.key()
	l := r.grant(a, driver.Request{Key: key})
	for _, c := range []driver.Backend{a, b} {
		_, err := r.try(c, driver.Request{Key: key, Mode: driver.Shared})
		if r.saw(err) == granted && r.valid(l) {
			r.fatal(sharing, "a shared lock was granted beside an exclusive one")
		}
		r.refuse(c, driver.Request{Key: key, Mode: driver.Shared}, l)
	}
	r.release(l)
	r.release(r.share(b, key))
}

// sharedUpgrade: the process that shares does not get it exclusively, nor the
// other way round: locks of a session often can.
func sharedUpgrade(r *run) {
	b, key := r.client(), r.key()
	l := r.share(b, key)
	again, err := r.try(b, driver.Request{Key: key})
	if r.saw(err) == granted && r.valid(l) {
		r.fatal(noReentrancy, "a process that shares the key got it exclusively as well, with token %d", again.Grant().Fence)
	}
	r.holds(b, key, l)
	r.release(l)
}

// sharedStale: a share that is over is nobody else's share, however often it is
// released.
func sharedStale(r *run) {
	a, b := r.pair()
	key := r.key()
	old, other := r.share(a, key), r.share(b, key)
	r.release(old)
	r.lost(old)
	for range 3 {
		r.dropped(old)
	}
	r.keepsOut(a, key, other)
	r.renew(other, driver.Renewal{})
	r.release(other)
	r.free(a, key)
}

// sharedRace mixes both modes in one race: either one exclusive owner, or shared ones
// alone.
func sharedRace(r *run) {
	clients := r.clients(3)
	for range 3 {
		key := r.key()
		modes := make([]driver.Mode, 40)
		leases := make([]driver.Lease, len(modes))
		r.together(len(modes), func(i int) {
			if i%4 != 0 {
				modes[i] = driver.Shared
			}
			l, err := r.try(clients[i%len(clients)], driver.Request{Key: key, Mode: modes[i]})
			if r.saw(err) == granted {
				leases[i] = l
			}
		})
		r.compatible(key, modes, leases)
	}
}

func (r *run) compatible(key string, modes []driver.Mode, leases []driver.Lease) {
	exclusive, all := 0, 0
	for i, l := range leases {
		if l == nil {
			continue
		}
		if !r.valid(l) {
			r.stall("a lease ended during the race for it")
		}
		all++
		if modes[i] == driver.Exclusive {
			exclusive++
		}
	}
	if exclusive > 0 && all > 1 {
		r.fatal(sharing, "%d owners have key %q at once, %d of them exclusively", all, short(key), exclusive)
	}
	for _, l := range leases {
		if l != nil {
			r.release(l)
		}
	}
	r.free(r.client(), key)
}
