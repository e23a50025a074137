package bench

import (
	"strings"
	"testing"
)

// row makes a row with one metric.
func row(in, contestant string, kind Kind, client string, v float64) *Row {
	m := Metric{Name: "key", Unit: Seconds, Value: v, Low: v, High: v}
	return &Row{Case: in, Contestant: contestant, Kind: kind, Client: client, Metrics: []Metric{m}}
}

func section(more bool, rows ...*Row) *Section {
	return &Section{Scenario: "s", Title: "S", Key: "key", More: more, Rows: rows}
}

func TestTheFirstParagraphSaysWhereWeAreBehind(t *testing.T) {
	s := section(false,
		row("a", "dlock", Ours, "x", 2), row("a", "them", Peer, "y", 1), row("a", "bare, x", Limit, "x", 4),
		row("b", "dlock", Ours, "x", 3), row("b", "them", Peer, "y", 1))
	got := summarize([]*Section{s})
	for _, want := range []string{"2 of 2 comparisons with other libraries we are behind", "none of 1 comparisons with the limits"} {
		if !strings.Contains(got[0], want) {
			t.Errorf("the first paragraph does not say %q: %s", want, got[0])
		}
	}
	const lost = "s: dlock has 2 to 3\u00a0× the key of them (a; b)"
	if !strings.Contains(got[0], "S (them by 3\u00a0×)") {
		t.Errorf("the first paragraph does not name the library that is ahead: %s", got[0])
	}
	if len(got) != 2 || !strings.HasPrefix(got[1], lost+". Why: ") {
		t.Errorf("the list is %q", got[1:])
	}
}

func TestTheFirstParagraphNamesEveryLibraryThatIsAheadAnywhere(t *testing.T) {
	var sections []*Section
	for _, name := range []string{"redsync, x", "redislock, x", "valkeylock, y", "etcd, z", "others, y"} {
		s := section(true, row("a", "dlock", Ours, "x", 1), row("a", name, Peer, "x", 1.1))
		s.Title = name
		sections = append(sections, s)
	}
	lead := summarize(sections)[0]
	for _, s := range sections {
		if !strings.Contains(lead, s.Title) {
			t.Errorf("it does not name %s: %s", s.Title, lead)
		}
	}
}

func TestSomeAgainstNoneIsBehind(t *testing.T) {
	s := section(false, row("a", "dlock", Ours, "x", 3), row("a", "them", Peer, "y", 0), row("b", "dlock", Ours, "x", 0), row("b", "them", Peer, "y", 0))
	got := summarize([]*Section{s})
	if !strings.Contains(got[0], "1 of 2") || !strings.Contains(got[0], "them by some against none") {
		t.Errorf("summary: %s", got[0])
	}
}

func TestEveryLossHasAReason(t *testing.T) {
	for _, s := range Scenarios() {
		for _, other := range []string{"bare, go-redis", "scripts, valkey-go", "BLPOP queue, go-redis", "redsync, go-redis", "redislock, go-redis", "valkeylock, valkey-go", "rueidislock, rueidis"} {
			g := group{{section: &Section{Scenario: s.Name, Key: "key"}, other: &Row{Contestant: other}}}
			if why := g.why(); s.Name != "recovery" && strings.HasPrefix(why, "not known") {
				t.Errorf("%s: %s may be ahead, and nothing says why", s.Name, other)
			}
		}
	}
}

func TestPeersAreToBeBeatenOnTheSameClientOrOnAny(t *testing.T) {
	s := section(false, row("a", "dlock, x", Ours, "x", 2), row("a", "slow, x", Peer, "x", 4), row("a", "fast, y", Peer, "y", 1))
	for client, want := range map[string]float64{"x": 0.5, "": 2} {
		if v, ok := toBest([]*Section{s}, "s", "a", "key", "dlock, x", client); !ok || v != want {
			t.Errorf("client %q: %v, %v, want %v", client, v, ok, want)
		}
	}
	lucky := row("a", "lucky, y", Peer, "y", 0.1)
	lucky.Metrics = append(lucky.Metrics, Metric{Name: "locks", Value: 100}, Metric{Name: "handoffs", Value: 9})
	s.Rows = append(s.Rows, lucky)
	if v, ok := toBest([]*Section{s}, "s", "a", "key", "dlock, x", ""); !ok || v != 2 {
		t.Errorf("%v, %v beside one that hardly hands over, want 2", v, ok)
	}
	if _, ok := toBest([]*Section{s}, "s", "a", "key", "dlock, x", "z"); ok {
		t.Error("there is no library over z")
	}
}

func TestMoreIsBetterTurnsTheComparison(t *testing.T) {
	s := section(true, row("a", "dlock", Ours, "x", 100), row("a", "them", Peer, "x", 200), row("a", "others", Peer, "x", 50))
	all := comparisons([]*Section{s})
	if len(all) != 2 || all[0].factor != 2 || all[1].factor != 0.5 {
		t.Fatalf("comparisons: %+v", all)
	}
	if got := summarize([]*Section{s}); !strings.Contains(got[0], "1 of 2") {
		t.Errorf("summary: %s", got[0])
	}
}

func TestLimitsOfAnotherClientAreNotCompared(t *testing.T) {
	s := section(false, row("a", "dlock", Ours, "x", 2), row("a", "bare, y", Limit, "y", 1))
	if all := comparisons([]*Section{s}); len(all) != 0 {
		t.Errorf("compared: %+v", all)
	}
}

func TestRowsStandBesideTheLimitsOfTheirClient(t *testing.T) {
	s := section(false, row("a", "dlock", Ours, "x", 3), row("a", "bare, x", Limit, "x", 2), row("a", "scripts, x", Limit, "x", 2.5),
		row("a", "bare, y", Limit, "y", 1), row("b", "bare, x", Limit, "x", 100))
	relate(s, "a")
	bare, _ := s.Rows[0].metric(toBare)
	scripts, _ := s.Rows[0].metric(toScripts)
	if bare.Value != 1.5 || scripts.Value != 1.2 {
		t.Errorf("to bare %v, to scripts %v; want 1.5 and 1.2", bare.Value, scripts.Value)
	}
	if _, ok := s.Rows[1].metric(toBare); ok {
		t.Error("a limit stands beside itself")
	}
	if len(s.Rows[4].Metrics) != 1 {
		t.Error("another case was touched")
	}
}

func TestAGoalIsMetOnlyIfItWasMeasured(t *testing.T) {
	own := row("redis-server", "dlock, go-redis", Ours, "go-redis", 1.2)
	scripts := row("redis-server", "scripts, go-redis", Limit, "go-redis", 1)
	for _, r := range []*Row{own, scripts} {
		r.Metrics[0].Name = pair + " p50"
	}
	s := &Section{Scenario: "single", Rows: []*Row{own, scripts}}
	got := goals([]*Section{s})
	if len(got) != 1 || !got[0].Met || got[0].Measured != 1.2 {
		t.Fatalf("goals: %+v", got)
	}
	own.Metrics[0].Value = 2
	if got := goals([]*Section{s}); len(got) != 1 || got[0].Met {
		t.Errorf("2 × was taken for at most 1.25 ×: %+v", got)
	}
}
