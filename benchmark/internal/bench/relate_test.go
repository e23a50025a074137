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
	if len(got) != 2 || got[1] != "s: dlock has 2 to 3 × the key of them (a; b)" {
		t.Errorf("the list is %q", got[1:])
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
