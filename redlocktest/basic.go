package redlocktest

import (
	"time"

	"github.com/redlock-go/redlock/driver"
)

var basicCases = []testCase{
	{name: "info", do: infoIsConstant},
	{name: "grant", do: grantAndRelease},
	{name: "held", do: heldIsHeld},
	{name: "lost", do: lostStaysOpen},
}

func infoIsConstant(r *run) {
	b := r.client()
	i := b.Info()
	for range 3 {
		if again := b.Info(); again != i {
			r.fatal(describing, "Info changed from %+v to %+v", i, again)
		}
	}
	if other := r.open().Info(); other != i {
		r.record(describing, "two clients of one lock space describe themselves differently: %+v and %+v", i, other)
	}
	all := driver.FeatureShared | driver.FeatureFencing | driver.FeatureSession | driver.FeatureQueueing | driver.FeatureQuorumNode | driver.FeatureKeep | driver.FeatureOrdered | driver.FeatureTokens
	switch {
	case i.Name == "":
		r.record(describing, "Name is empty")
	case i.Features&^all != 0:
		r.record(describing, "Features has bits that mean nothing: %#x", uint32(i.Features))
	case i.Features.Has(driver.FeatureQuorumNode) && !i.Features.Has(driver.FeatureFencing):
		r.record(describing, "a node of a quorum gives tokens, and Fencing is not among the features %v", i.Features)
	case i.Features.Has(driver.FeatureTokens) && !i.Features.Has(driver.FeatureFencing):
		r.record(describing, "a backend gives ranges of tokens, and Fencing is not among the features %v", i.Features)
	}
	switch {
	case i.MaxTTL == 0 && !i.Features.Has(driver.FeatureSession):
		r.record(describing, "MaxTTL is zero, and Session is not among the features %v", i.Features)
	case i.MaxTTL == 0 && i.MinTTL != 0:
		r.record(describing, "MaxTTL is zero and MinTTL %v", i.MinTTL)
	case i.MaxTTL != 0 && i.MinTTL < driver.MinTTL:
		r.record(describing, "MinTTL %v is under %v", i.MinTTL, driver.MinTTL)
	case i.MaxTTL < i.MinTTL:
		r.record(describing, "MaxTTL %v is under MinTTL %v", i.MaxTTL, i.MinTTL)
	}
}

func grantAndRelease(r *run) {
	b, key := r.client(), r.key()
	l := r.grant(b, driver.Request{Key: key})
	for range 3 {
		g := l.Grant()
		switch {
		case r.info.MaxTTL == 0 && !g.Expires.IsZero():
			r.fatal(sessions, "the backend has no TTL, and the grant expires at %v", g.Expires)
		case r.info.MaxTTL != 0 && !r.info.Features.Has(driver.FeatureSession) && g.Expires.IsZero():
			r.fatal(expires, "the grant has no Expires, and Session is not among the features %v", r.info.Features)
		case g.Fence != 0 && !r.info.Features.Has(driver.FeatureFencing):
			r.fatal(tokens, "Fencing is not among the features %v, and a grant has token %d", r.info.Features, g.Fence)
		case !g.Expires.IsZero() && !time.Now().Before(g.Expires):
			r.startOver("a lease of %v was over when it was granted", r.long())
		}
		r.release(l)
		l = r.again(b, key)
	}
	r.release(l)
}

// heldIsHeld checks that two clients exclude each other, as two processes do.
func heldIsHeld(r *run) {
	a, b, key, l := r.holding(driver.Request{})
	r.refuse(b, driver.Request{Key: key}, l)
	r.release(l)
	l = r.again(b, key)
	r.refuse(a, driver.Request{Key: key}, l)
	r.release(l)
}

// lostStaysOpen checks that the channel Lost is closed at the lease's end and not earlier. All
// other checks take a lease whose channel is closed for lost.
func lostStaysOpen(r *run) {
	b := r.client()
	l := r.grant(b, driver.Request{Key: r.key()})
	if l.Grant().Lost == nil {
		r.pass("grants have no channel Lost")
	}
	r.notLost(l, "after the grant", l.Grant().Lost)
	for range 3 {
		before := l.Grant().Lost
		r.renew(l, driver.Renewal{})
		r.notLost(l, "after a renewal", before, l.Grant().Lost)
	}
	r.release(l)
}

// notLost asserts that none of a lease's channels is closed while it can be renewed.
func (r *run) notLost(l *lease, when string, channels ...<-chan struct{}) {
	for _, c := range channels {
		if !over(c) {
			continue
		}
		if _, err := l.Renew(r.ctx, &driver.Renewal{TTL: r.long()}); r.saw(err) == granted {
			r.fatal(losing, "Lost is closed %s, and the lease is not lost: Renew succeeds after that", when)
		}
		r.startOver("a lease was lost %s", when)
	}
}
