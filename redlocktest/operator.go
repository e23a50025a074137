package redlocktest

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"

	"github.com/redlock-go/redlock/driver"
)

var operatorCases = []testCase{
	{name: "lookup", needs: []condition{inspects}, do: lookup},
	{name: "list", needs: []condition{inspects}, do: list},
	{name: "check", needs: []condition{inspects}, do: check},
	{name: "break", features: driver.FeatureFencing, needs: []condition{admins}, do: breakLock},
	{name: "break-beside", features: driver.FeatureFencing, needs: []condition{admins}, do: breakBeside},
	{name: "break-reader", features: driver.FeatureShared | driver.FeatureFencing, without: driver.FeatureSession, needs: []condition{admins}, do: breakReader},
}

func (r *run) lookup(b driver.Backend, key string) (s *driver.State) {
	r.inspect("Lookup", func() (err error) {
		s, err = b.(driver.Inspector).Lookup(r.ctx, key)
		return err
	})
	if s == nil {
		r.fatal(inspecting, "Lookup returned neither a state nor an error")
	}
	return s
}

func lookup(r *run) {
	a, b := r.pair()
	key, owner := r.key(), r.owner()
	if s := r.lookup(b, key); len(s.Holders) != 0 {
		r.fatal(inspecting, "a key that was never taken has holders: %+v", s.Holders)
	}
	l := r.grant(a, driver.Request{Key: key, Owner: owner})
	s := r.lookup(b, key)
	if !r.valid(l) {
		r.startOver("a lease ended under the case")
	}
	if s.Key != key || s.Mode != driver.Exclusive || len(s.Holders) != 1 {
		r.misstated(s, "key %q is held by one owner, and its state is %+v", key, s)
	}
	h, fence := s.Holders[0], l.Grant().Fence
	switch {
	case h.Fence != 0 && h.Fence != fence, s.Fence != 0 && s.Fence < fence:
		r.misstated(s, "the token is %d, the holder's is said to be %d, and the counter %d", fence, h.Fence, s.Fence)
	case strings.Contains(h.Owner, ownerLabel) && !strings.Contains(h.Owner, owner):
		r.record(inspecting, "the holder is %q, and said to be %q", owner, h.Owner)
	case h.TTL < 0 || r.long() > 0 && h.TTL > 2*(r.long()+r.h.Grace):
		r.record(inspecting, "the holder's TTL is said to be %v, and was %v", h.TTL, r.long())
	}
	r.release(l)
	if s := r.lookup(b, key); len(s.Holders) != 0 {
		r.fatal(inspecting, "a key that was released has holders: %+v", s.Holders)
	}
	if !r.info.Features.Has(driver.FeatureShared) {
		return
	}
	readers := []*lease{r.share(a, key), r.share(b, key), r.share(a, key)}
	for n := len(readers); n > 0; n-- { // a backend may know only some of the readers
		if s := r.lookup(b, key); s.Mode != driver.Shared || len(s.Holders) == 0 || len(s.Holders) > n {
			r.misstated(s, "%d share key %q, and its state is %+v", n, key, s)
		}
		r.release(readers[n-1])
	}
}

// list takes keys that nearly match the prefix, which is literal: '*' is no wildcard.
func list(r *run) {
	a, b := r.pair()
	stem := r.key()
	prefix := stem + "*["
	inside := []string{prefix, prefix + "1", prefix + "2\x00", prefix + "*"}
	for _, key := range append(slices.Clone(inside), stem, stem+"x[", stem+"*") {
		r.grant(a, driver.Request{Key: key})
	}
	released := r.grant(a, driver.Request{Key: prefix + "released"})
	r.release(released)
	slices.Sort(inside)
	if got := r.list(b, prefix, len(inside)+10); !slices.Equal(got, inside) {
		r.fatal(inspecting, "with prefix %q the keys %q are held, and List yields %q", prefix, inside, got)
	}
	if got := r.list(b, prefix, 2); len(got) != 2 {
		r.fatal(inspecting, "List was told to stop after 2 keys, and yields %q", got)
	}
	if got := r.list(b, r.key(), 1); len(got) != 0 {
		r.fatal(inspecting, "nothing is held under a prefix, and List yields %q", got)
	}
}

// list returns the keys under prefix, sorted; yield stops the iteration after most keys.
func (r *run) list(b driver.Backend, prefix string, most int) []string {
	var keys []string
	r.inspect("List", func() error {
		keys = nil
		return b.(driver.Inspector).List(r.ctx, prefix, func(s *driver.State) bool {
			keys = append(keys, s.Key)
			return len(keys) < most
		})
	})
	slices.Sort(keys)
	return keys
}

// inspect asks until there is an answer.
func (r *run) inspect(what string, ask func() error) {
	if v, _, err := r.settle(inspecting, what, ask); v != granted {
		r.fatal(inspecting, "%s gives %v: %v", what, v, err)
	}
}

// findingCode matches the Code of a Diagnostic, such as maxmemory-policy.
var findingCode = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)

func check(r *run) {
	var findings []driver.Diagnostic
	b := r.client().(driver.Inspector)
	r.inspect("Check", func() (err error) {
		findings, err = b.Check(r.ctx)
		return err
	})
	for i := range findings {
		f := &findings[i]
		r.note("%v: %s", f.Severity, f.Summary)
		switch {
		case f.Summary == "" || f.Severity > driver.SeverityUnsafe:
			r.record(inspecting, "a finding says nothing: %+v", *f)
		case !findingCode.MatchString(f.Code):
			r.record(inspecting, "the code of a finding is %q, and must be lower-case words with dashes: %s", f.Code, f.Summary)
		case i > 0 && f.Severity > findings[i-1].Severity:
			r.record(inspecting, "finding %d is graver than the one before it", i)
		}
	}
}

// holderOf returns the holder of key as Break names it: by its session, or by its token.
func (r *run) holderOf(b driver.Backend, key string, fence uint64) driver.Holder {
	holder := driver.Holder{Fence: fence}
	if _, ok := b.(driver.Inspector); ok {
		if s := r.lookup(b, key); len(s.Holders) == 1 {
			holder.Session = s.Holders[0].Session
		}
	}
	return holder
}

// breakLock checks that only the right token, or session, takes a lock away, and that its holder
// learns of it.
func breakLock(r *run) {
	a, b := r.pair()
	admin := b.(driver.Admin)
	key := r.key()
	r.breaks(admin, key, driver.Holder{Fence: 1, Session: "1"}, false, "a key that nobody has")
	l := r.grant(a, driver.Request{Key: key})
	fence := l.Grant().Fence
	holder := r.holderOf(b, key, fence)
	if holder.Session != "" {
		r.breaks(admin, key, driver.Holder{Session: holder.Session + "1"}, false, "another session")
	} else {
		r.breaks(admin, key, driver.Holder{Fence: fence - 1}, false, "a token less by one")
		r.breaks(admin, key, driver.Holder{Fence: fence + 1}, false, "a token more by one")
	}
	r.holds(b, key, l)
	r.breaks(admin, key, holder, true, "the holder's token or session")
	next := r.eventually(b, driver.Request{Key: key})
	r.rises(fence, next.Grant().Fence)
	r.lost(l)
	r.holds(a, key, next)
	r.release(next)
}

// breakReader checks that Break takes a key from the reader with the token, and from no other.
func breakReader(r *run) {
	a, b := r.pair()
	key := r.key()
	gone, stays := r.share(a, key), r.share(b, key)
	r.breaks(b.(driver.Admin), key, driver.Holder{Fence: gone.Grant().Fence}, true, "a reader's token")
	r.lost(gone)
	r.keepsOut(a, key, stays)
	r.renew(stays, driver.Renewal{})
	r.release(stays)
	r.free(a, key)
}

// breaks asserts that Break breaks a lock, or does nothing.
func (r *run) breaks(admin driver.Admin, key string, h driver.Holder, done bool, with string) {
	v, doubtful, err := r.settle(breaking, "Break with "+with, func() error { return admin.Break(r.ctx, key, h) })
	switch {
	case done && v != granted && (v != lost || !doubtful):
		r.fatal(breaking, "Break with %s gives %v: %v", with, v, err)
	case !done && v != lost:
		r.fatal(breaking, "Break with %s gives %v, not ErrLost: %v", with, v, err)
	}
}

// breakBeside breaks locks while other owners ask for them, every second one while it is released,
// and checks that only one owner has each lock at a time, and that later calls with the broken lease
// and its token take it from nobody.
func breakBeside(r *run) {
	clients := r.clients(4)
	admin := clients[0].(driver.Admin)
	for i := range r.rounds(r.h.times(30)) {
		key := r.key()
		l := r.grant(clients[0], driver.Request{Key: key})
		holder := r.holderOf(clients[1], key, l.Grant().Fence)
		if holder.Session != "" {
			r.pass("Break takes all locks of a session")
		}
		broken := r.async(func() {
			if i%2 == 0 {
				r.breaks(admin, key, holder, true, "the holder's token")
				r.pause(rand.N(2 * poll))
				r.releaseEnded(l)
			} else {
				breaks := r.async(func() { _ = admin.Break(r.ctx, key, holder) })
				r.pause(rand.N(poll))
				r.releaseEnded(l)
				<-breaks
			}
			r.breaks(admin, key, holder, false, "the token of a lease that is over")
		})
		get := func(i int) *lease { return r.eventually(clients[i+1], driver.Request{Key: key, Wait: true}) }
		r.serial(3, 2, get, func(*lease) {})
		r.join(broken)
	}
}
