package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

// ErrUsage says that the command line cannot be; what is wrong was printed.
var ErrUsage = errors.New("bad command line")

// Main is a program that measures the contestants of this package and, with the flag
// -peers, also peers.
func Main(ctx context.Context, args []string, out, progress io.Writer, peers ...Contestant) error {
	if os.Getenv(crewVariable) != "" {
		return serveCrew(ctx, os.Stdin, os.Stdout, append(Contestants(), peers...))
	}
	o, err := parse(args, progress)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	contestants := Contestants()
	if o.peers {
		contestants = append(contestants, peers...)
	}
	if o.url != "" {
		if contestants, err = deployment(o.url); err != nil {
			return err
		}
	}
	report, err := measure(ctx, o, contestants, progress)
	if err != nil {
		return err
	}
	if err := report.write(o.out); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n\n", report.Summary[0])
	for _, g := range report.Goals {
		if !g.Met {
			fmt.Fprintf(out, "goal not met: %s: %s, at most %s\n", g.What, digits(g.Measured), digits(g.Most))
		}
	}
	for _, name := range []string{"report.html", "report.md", "report.json"} {
		fmt.Fprintln(out, filepath.Join(o.out, name))
	}
	return nil
}

func measure(ctx context.Context, o *options, contestants []Contestant, progress io.Writer) (report *Report, err error) {
	r := NewRunner(o.plan, contestants, progress)
	defer func() { err = errors.Join(err, r.Close()) }()
	scenarios := o.scenarios
	if o.url != "" {
		r.plan.Held = slices.DeleteFunc(slices.Clone(r.plan.Held), func(h Holding) bool { return h.Leases > mostOnDeployment })
		scenarios = onDeployment(scenarios)
		r.keys, r.url = randomKeys(), o.url
		r.report.Title = "Locks of one deployment, measured"
	}
	return r.Run(ctx, scenarios)
}

// Contestants returns all of this package.
func Contestants() []Contestant {
	list := own()
	list = append(list, limits()...)
	list = append(list, queues()...)
	return append(list, postgresLimits()...)
}

// mostOnDeployment is how many leases are held at once on servers that may have other
// work to do.
const mostOnDeployment = 10_000

type options struct {
	plan      Plan
	scenarios []Scenario
	peers     bool
	url       string
	out       string
}

// parse reads the command line. What is wrong is printed to w.
func parse(args []string, w io.Writer) (*options, error) {
	f := flag.NewFlagSet("benchmark", flag.ContinueOnError)
	f.SetOutput(w)
	quick := f.Bool("quick", false, "measure less, in under a minute")
	list := f.String("scenario", "", "measure these alone, separated by commas")
	only := f.String("case", "", "measure those cases alone whose title and name, as the progress shows them, match this regular expression")
	peers := f.Bool("peers", false, "measure other libraries too")
	url := f.String("url", "", "measure locks of this URL, as dlock.OpenURL takes it, instead of servers of its own")
	length := f.Duration("for", 0, "measure for about so long (default: 8m30s, with -quick 50s; of that the part that -scenario has)")
	out := f.String("out", "", "the folder for the report (default: a new temporary one)")
	f.Usage = func() {
		fmt.Fprintf(w, "Usage: go run -C benchmark . [flags]\n\nIt starts servers of its own, measures, and writes report.html, report.md and report.json.\n\nFlags:\n")
		f.PrintDefaults()
		fmt.Fprintf(w, "\nScenarios:\n")
		for _, s := range Scenarios() {
			fmt.Fprintf(w, "  %-12s %s\n", s.Name, s.What)
		}
	}
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, ErrUsage // it was printed
	}
	wrong := func(text string, args ...any) (*options, error) {
		fmt.Fprintf(w, "benchmark: "+text+"\n", args...)
		return nil, ErrUsage
	}
	if f.NArg() > 0 {
		return wrong("unexpected argument %q", f.Arg(0))
	}
	o := &options{plan: Full(), peers: *peers, url: *url, out: *out}
	if *quick {
		o.plan = Quick()
	}
	var err error
	if o.scenarios, err = Pick(*list); err != nil {
		return wrong("-scenario: %v", err)
	}
	if o.plan.Only, err = regexp.Compile(*only); err != nil {
		return wrong("-case: %v", err)
	}
	switch {
	case *length < 0:
		return wrong("-for must be positive, and is %v", *length)
	case *length > 0:
		o.plan.For = *length
	default:
		o.plan.For = time.Duration(float64(o.plan.For) * shares(o.scenarios))
		o.plan.Part = *list != "" || *only != ""
	}
	if o.url != "" {
		if o.peers {
			return wrong("-peers and -url contradict each other: other libraries take no such URL")
		}
		if len(onDeployment(o.scenarios)) == 0 {
			return wrong("-scenario: none of these can be measured with -url (there are %s)", names(onDeployment(Scenarios())))
		}
		if err := tryURL(o.url); err != nil {
			return wrong("-url: %v", err)
		}
	}
	if o.out == "" {
		if o.out, err = os.MkdirTemp("", "redlock-benchmark-"); err != nil {
			return nil, err
		}
	}
	return o, nil
}
