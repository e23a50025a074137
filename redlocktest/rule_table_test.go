package redlocktest

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// TestTheTableOfRulesHasWhatTheCasesName: each rule that a group's file names in an assertion is
// in the table.
func TestTheTableOfRulesHasWhatTheCasesName(t *testing.T) {
	files := map[string]string{"close": "closing.go", "fault": "outage.go"}
	assertion := regexp.MustCompile(`\.(?:record|fatal|suspect|eventuallyRule)\((\w+),`)
	for _, g := range groups {
		file := files[g.name]
		if file == "" {
			file = g.name + ".go"
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		named := assertion.FindAllStringSubmatch(string(text), -1)
		if len(named) == 0 {
			t.Errorf("%s asserts nothing", file)
		}
		for _, m := range named {
			r, ok := ruleNames[m[1]]
			if !ok {
				if m[1] != "broken" {
					t.Errorf("%s names the rule %s, which the test does not know", file, m[1])
				}
				continue
			}
			if !slices.Contains(always, r) && !slices.Contains(checked[g.name], r) {
				t.Errorf("the cases of %s name the rule %q, and the table lacks it", g.name, r)
			}
		}
	}
}

var ruleNames = map[string]rule{
	"exclusion": exclusion, "fourOutcomes": fourOutcomes, "undoes": undoes, "expires": expires, "refuses": refuses, "oneWins": oneWins,
	"noReentrancy": noReentrancy, "noLeaks": noLeaks, "tokens": tokens, "noPassword": noPassword, "layout": layout, "acquiring": acquiring,
	"requesting": requesting, "renewing": renewing, "releasing": releasing, "closing": closing, "describing": describing, "holderSeen": holderSeen,
	"floors": floors, "joins": joins, "nodes": nodes, "raising": raising, "sharing": sharing, "sessions": sessions, "waiting": waiting,
	"queueing": queueing, "watching": watching, "inspecting": inspecting, "breaking": breaking, "losing": losing, "keeping": keeping,
	"opening": opening, "history": history,
}
