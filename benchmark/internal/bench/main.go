package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// Options say what a run on its own servers measures.
type Options struct {
	Quick      bool
	For        time.Duration // zero: the plan's time
	Scenarios  []Scenario
	Case       *regexp.Regexp // nil: all
	Contestant *regexp.Regexp // nil: all
	README     string         // the file whose table is replaced; empty: none
}

// Run measures, writes the report into the folder out, and prints a summary to w.
func Run(ctx context.Context, o Options, peers []Contestant, out string, w, progress io.Writer) (err error) {
	plan := Full()
	if o.Quick {
		plan = Quick()
	}
	whole := len(o.Scenarios) == len(Scenarios())
	if whole && o.Quick {
		o.Scenarios = Quickly()
	}
	if plan.Only = o.Case; o.For > 0 {
		plan.For = o.For
	} else if !whole {
		plan.For = time.Duration(float64(plan.For) * shares(o.Scenarios))
	}
	contestants := append(Contestants(), peers...)
	if o.Contestant != nil {
		contestants = slices.DeleteFunc(contestants, func(c Contestant) bool { return c.Kind != Limit && !o.Contestant.MatchString(c.Name) })
	}
	r := NewRunner(plan, contestants, progress)
	defer func() { err = errors.Join(err, r.Close()) }()
	report, err := r.Run(ctx, o.Scenarios)
	if err != nil {
		return err
	}
	if err := report.write(out); err != nil {
		return err
	}
	for _, line := range report.Behind {
		fmt.Fprintln(w, "- "+line)
	}
	for _, g := range report.Goals {
		if g.Verdict != figures.Met {
			fmt.Fprintf(w, "- goal %s: %s: %s, at most %s\n", g.Verdict, g.What, g.Figure, figures.Digits(g.Most))
		}
	}
	fmt.Fprintf(w, "\n%s\n%s\n\n", report.Lead, report.markdown())
	for _, name := range []string{"report.html", "report.json"} {
		fmt.Fprintln(w, filepath.Join(out, name))
	}
	if o.README != "" {
		return report.writeREADME(o.README)
	}
	return nil
}

// Contestants returns all contestants of this package.
func Contestants() []Contestant {
	list := own()
	list = append(list, limits()...)
	list = append(list, queues()...)
	return append(list, postgresLimits()...)
}
