package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"time"
)

// Options say what to measure on servers of its own.
type Options struct {
	Quick      bool
	For        time.Duration // zero: as long as the plan says
	Scenarios  []Scenario
	Case       *regexp.Regexp // nil: all
	Contestant *regexp.Regexp // nil: all
}

// Run measures, writes the report into the folder out, and says in w what came of it.
func Run(ctx context.Context, o Options, peers []Contestant, out string, w, progress io.Writer) (err error) {
	plan := Full()
	if o.Quick {
		plan = Quick()
	}
	if plan.Only = o.Case; o.For > 0 {
		plan.For = o.For
	} else {
		plan.For = time.Duration(float64(plan.For) * shares(o.Scenarios))
		plan.Part = len(o.Scenarios) < len(Scenarios()) || o.Case != nil || o.Contestant != nil
	}
	r := NewRunner(plan, append(Contestants(), peers...), progress)
	defer func() { err = errors.Join(err, r.Close()) }()
	report, err := r.Run(ctx, o.Scenarios)
	if err != nil {
		return err
	}
	if err := report.write(out); err != nil {
		return err
	}
	fmt.Fprintf(w, "%s\n\n", report.Summary[0])
	for _, g := range report.Goals {
		if !g.Met {
			fmt.Fprintf(w, "goal not met: %s: %s, at most %s\n", g.What, digits(g.Measured), digits(g.Most))
		}
	}
	for _, name := range []string{"report.html", "report.md", "report.json"} {
		fmt.Fprintln(w, filepath.Join(out, name))
	}
	return nil
}

// Contestants returns all of this package.
func Contestants() []Contestant {
	list := own()
	list = append(list, limits()...)
	list = append(list, queues()...)
	return append(list, postgresLimits()...)
}
