package driver

import (
	"testing"
	"time"
)

func TestTheVerdictIsWhatTheNodesComeTo(t *testing.T) {
	held := func(owner string, ttl time.Duration) *State {
		return &State{Holders: []Holder{{Owner: owner, TTL: ttl}}}
	}
	free := &State{}
	quorum := func(merged *State, nodes ...*State) *State {
		for _, n := range nodes {
			merged.Nodes = append(merged.Nodes, NodeState{State: n})
		}
		return merged
	}
	for want, states := range map[string][]*State{
		"free":              {free, quorum(&State{}, free, free, nil)},
		"held":              {held("a", time.Minute), held("a", 0), quorum(held("a", time.Minute), held("a", time.Minute), held("a", time.Minute), held("b", time.Minute))},
		"expiring":          {held("a", time.Second-1), quorum(&State{}, held("a", time.Minute), free, free), quorum(&State{}, held("a", time.Minute), nil, nil)},
		"kept for the next": {{ReservedFor: 1}},
		"split":             {quorum(&State{}, held("a", time.Minute), held("b", time.Minute), free)},
	} {
		for i, s := range states {
			if got := s.Verdict(); got != want {
				t.Errorf("%d: %v, want %v: %+v", i, got, want, s)
			}
		}
	}
}
