package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/benchmark/internal/machine"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A Runner measures scenarios, one after the other. It starts servers when a scenario needs
// them, and Close stops them.
type Runner struct {
	plan        Plan
	scenario    string // the scenario that is being measured
	contestants []Contestant
	progress    io.Writer
	began       time.Time
	report      *Report
	started     map[server.Kind][]*server.Server
	failed      error // why servers cannot start
}

// NewRunner returns a Runner that writes its progress to w.
func NewRunner(p Plan, contestants []Contestant, w io.Writer) *Runner {
	return &Runner{
		plan:        p,
		contestants: contestants,
		progress:    w,
		began:       time.Now(),
		started:     map[server.Kind][]*server.Server{},
		report: &Report{
			Title:   "Locks, measured",
			Began:   time.Now().Truncate(time.Second),
			Quick:   p.Quick,
			Machine: Machine{Text: machine.Describe(), Libraries: machine.Libraries("redis/go-redis", "valkey-io/valkey-go", "redis/rueidis", "go-redsync/", "bsm/redislock", "go-pglock", "jackc/pgx", "etcd/client/v3")},
		},
	}
}

// say prints a line of progress.
func (r *Runner) say(text string, args ...any) {
	fmt.Fprintf(r.progress, "%7s of %.0f s  %-10s %s\n", shortly(time.Since(r.began)), r.plan.For.Seconds(), r.scenario, fmt.Sprintf(text, args...))
}

// note adds a note for the reader to the report.
func (r *Runner) note(text string, args ...any) {
	s := fmt.Sprintf(text, args...)
	if !slices.Contains(r.report.Notes, s) {
		r.report.Notes = append(r.report.Notes, s)
		r.say("note: %s", s)
	}
}

// know adds a contestant to the report's list.
func (r *Runner) know(c Contestant) {
	if !slices.ContainsFunc(r.report.Setups, func(a About) bool { return a.Name == c.Name }) {
		r.report.Setups = append(r.report.Setups, About{c.Name, c.Kind, c.How})
	}
}

// Run measures the scenarios and returns the report. The run takes about as long as the plan
// says: the time is divided anew before each case, so that a case that takes too long shortens
// the later ones. Cases that have not begun when the time is well over are left out, and the
// report says so.
func (r *Runner) Run(ctx context.Context, scenarios []Scenario) (*Report, error) {
	start := machine.Now()
	var cases []*testCase
	for _, s := range scenarios {
		r.scenario = s.Name
		planned := s.plan(ctx, r)
		if r.failed != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, r.failed)
		}
		for _, c := range planned {
			if len(c.contestants) > 0 && (r.plan.Only == nil || r.plan.Only.MatchString(c.title())) {
				c.scenario, c.section.Scenario = s.Name, s.Name
				cases = append(cases, c)
			}
		}
	}
	if len(cases) == 0 {
		return nil, errors.New("there is nothing to measure: no server that these cases need is installed, or no case matches")
	}
	for i, c := range cases {
		r.scenario = c.scenario
		if time.Since(r.began) > r.plan.For+r.plan.For/8 {
			r.note("the time was over before %s: there is more with -for", c.title())
			continue
		}
		r.say("%d of %d: %s", i+1, len(cases), c.title())
		if !slices.Contains(r.report.Sections, c.section) {
			r.report.Sections = append(r.report.Sections, c.section)
		}
		before := machine.Now()
		if err := r.compare(ctx, c, budget(r.plan.For-time.Since(r.began), cases[i:])); err != nil {
			return nil, fmt.Errorf("%s, %s: %w", c.scenario, c.name, err)
		}
		foreign := machine.Now().Foreign(before)
		for _, row := range c.section.of(c.name) {
			row.Foreign = foreign
		}
	}
	r.report.Took = time.Since(r.began).Round(time.Millisecond)
	r.report.Machine.Foreign = machine.Now().Foreign(start)
	r.report.Compared = comparisons(r.report.Sections)
	r.report.Goals = goals(r.report.Sections)
	r.report.sumUp()
	return r.report, nil
}

// title returns the case's name in the progress.
func (c *testCase) title() string { return label(c.section.Title, c.name) }

// missing reports whether the server's program is not installed, or cannot run on this system.
func missing(err error) bool {
	var m *server.MissingError
	return errors.As(err, &m) || errors.Is(err, server.ErrUnsupported)
}

// Close stops the servers.
func (r *Runner) Close() error {
	var errs []error
	for _, s := range slices.Concat(slices.Collect(maps.Values(r.started))...) {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// servers returns the servers of a ground, starting them if needed. It returns false if their
// program is missing, or if they do not start; r.failed then says why.
func (r *Runner) servers(ctx context.Context, g ground) ([]*server.Server, bool) {
	for len(r.started[g.kind]) < g.n {
		s, err := start(ctx, g.kind)
		if missing(err) {
			r.note("%s is left out: %v", g.kind, firstLine(err))
			return nil, false
		}
		if r.failed = errors.Join(r.failed, err); err != nil {
			return nil, false
		}
		if v := version(ctx, s); !slices.Contains(r.report.Machine.Servers, v) {
			r.report.Machine.Servers = append(r.report.Machine.Servers, v)
		}
		r.started[g.kind] = append(r.started[g.kind], s)
	}
	return r.started[g.kind][:g.n], true
}

func start(ctx context.Context, kind server.Kind) (*server.Server, error) {
	cfg := server.Config{Kind: kind}
	switch kind {
	case server.KindPostgres: // each waiter has its own connections
		cfg.Settings = []server.Setting{{Name: "max_connections", Value: "700"}}
	case server.KindEtcd:
		g, err := server.StartEtcd(ctx, 1, cfg)
		if err != nil {
			return nil, err
		}
		return g.Nodes[0], nil
	}
	return server.Start(ctx, cfg)
}

// version returns the server's name and version.
func version(ctx context.Context, s *server.Server) string {
	found := ""
	switch s.Kind() {
	case server.KindPostgres:
		if c, err := pgx.Connect(ctx, PostgresURL(s.Addr())); err == nil {
			found = c.PgConn().ParameterStatus("server_version")
			_ = c.Close(ctx) // it has served
		}
	case server.KindEtcd:
		if r, err := http.Get("http://" + s.Addr() + "/version"); err == nil {
			var v struct{ Etcdserver string }
			_ = json.NewDecoder(r.Body).Decode(&v)
			_ = r.Body.Close()
			found = v.Etcdserver
		}
	default:
		info, _ := s.Do("INFO", "server")
		text, _ := info.(string)
		_, found, _ = strings.Cut(InfoVersion(text), " ")
	}
	return strings.TrimSpace(string(s.Kind()) + " " + found)
}

// serving returns the contestants that can take part: those that pick accepts, or, if pick is
// nil, all that can make single attempts.
func (r *Runner) serving(g ground, pick func(Contestant) bool) []Contestant {
	var out []Contestant
	for _, c := range r.contestants {
		picked := !c.OnlyWaits
		if pick != nil {
			picked = pick(c)
		}
		if picked && c.Serves(g.kind, g.n) {
			out = append(out, c)
		}
	}
	return out
}

// firstLine shortens an error to one line, for the notes below a table.
func firstLine(err error) string {
	s, _, _ := strings.Cut(err.Error(), "\n")
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}
