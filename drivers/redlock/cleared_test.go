package redlock

import (
	"testing"
	"time"
)

// A node that may have an earlier attempt of the bid does not count for its release: only
// nodes that certainly have nothing of it do.
func TestADoubtfulNodeDoesNotCountAsReleased(t *testing.T) {
	join := func(feed func(event) actions, named owner) {
		feed(event{kind: renews, ttl: time.Minute, timeout: time.Second}) // asks it to join
		feed(event{kind: answered, node: 2, answer: held, owner: named})
		feed(event{kind: answered, node: 0, answer: granted, clock: agreed})
		feed(event{kind: answered, node: 1, answer: granted, clock: agreed})
	}
	for name, again := range map[string]func(feed func(event) actions){
		"not asked again":           func(func(event) actions) {},
		"it has an earlier attempt": func(feed func(event) actions) { join(feed, ourselves) },
		"somebody else has it":      func(feed func(event) actions) { join(feed, somebody) }, // the first attempt may still arrive
	} {
		t.Run(name, func(t *testing.T) {
			b, feed := contended()
			feed(event{kind: answered, node: 2, answer: silence})
			if feed(event{kind: looks}); b.stage != draining {
				t.Fatalf("the vote is not split: %+v", b)
			}
			feed(event{kind: answered, node: 0, answer: granted}) // released
			feed(event{kind: looks})
			feed(event{kind: looks, now: b.due})
			feed(event{kind: answered, node: 0, answer: granted, fence: 8, clock: agreed})
			feed(event{kind: looks})
			feed(event{kind: answered, node: 1, answer: granted, fence: 8, clock: agreed})
			if out := feed(event{kind: looks}); out.verdict != won {
				t.Fatalf("the second round is not won: %+v, %+v", out, b)
			}
			again(feed)

			feed(event{kind: releases})
			feed(event{kind: answered, node: 0, answer: granted})
			if n, certain := b.cleared(); n != 1 || certain {
				t.Errorf("%d nodes are cleared (certain: %v) while the release of node 1 is under way, and node 2 may have the first attempt", n, certain)
			}
			feed(event{kind: answered, node: 1, answer: granted})
			if n, certain := b.cleared(); n != 2 || !certain {
				t.Errorf("%d nodes are cleared (certain: %v) after both releases", n, certain)
			}
		})
	}
}

// A vote that was asked for in an earlier round is released and not counted, because its node may end
// the lock before a lease that counts from this round.
func TestAVoteOfAnEarlierRoundDoesNotCount(t *testing.T) {
	b, feed := contended()
	feed(event{kind: looks, now: b.due})                  // node 2 has not answered
	feed(event{kind: answered, node: 0, answer: granted}) // released
	for range 2 {
		feed(event{kind: looks, now: b.due})
	}
	feed(event{kind: answered, now: b.start, node: 0, answer: granted, fence: 8, clock: agreed})
	if feed(event{kind: looks, now: b.start}); b.round != 1 || b.stage != electing {
		t.Fatalf("no second round asks all nodes: %+v", b)
	}
	if out := feed(event{kind: answered, now: b.start, node: 2, answer: granted, fence: 8, clock: agreed}); out.calls[2] != release {
		t.Errorf("the late vote of the first round is not released: %+v", out)
	}
	if out := feed(event{kind: looks, now: b.start}); out.verdict != open {
		t.Errorf("it counts in the second round: %+v", out)
	}
}

// agreed is the clock of a node without delay.
var agreed = reading{excuse: time.Second, drift: 1, known: true}

// contended returns a bid on three nodes, of which node 0 has granted the lock and node 1 refused it.
func contended() (*bid, func(event) actions) {
	b := &bid{q: 2, parts: make([]part, 3), drift: 1, ttl: time.Minute, timeout: time.Second}
	feed := func(e event) actions {
		e.until = 1 << 60
		return b.step(&e)
	}
	feed(event{kind: begins})
	feed(event{kind: answered, node: 0, answer: granted, fence: 7, clock: agreed})
	feed(event{kind: answered, node: 1, answer: held, owner: somebody})
	return b, feed
}
