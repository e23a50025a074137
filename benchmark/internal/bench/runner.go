package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/machine"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A Runner measures scenarios, one after the other. It starts servers as they are
// needed, and they stay until its Close.
type Runner struct {
	plan        Plan
	keys        string // before every key
	scenario    string // that is being measured
	contestants []Contestant
	progress    io.Writer
	began       time.Time
	report      *Report
	started     map[server.Kind][]*server.Server
	others      []*server.Server  // of single cases
	guests      map[string]*Guest // by contestant
	waiters     *processes        // processes that wait for locks
}

// NewRunner returns a Runner that writes its progress to w.
func NewRunner(p Plan, contestants []Contestant, w io.Writer) *Runner {
	return &Runner{
		plan:        p,
		contestants: contestants,
		progress:    w,
		began:       time.Now(),
		started:     map[server.Kind][]*server.Server{},
		guests:      map[string]*Guest{},
		report: &Report{
			Title:   "Locks, measured",
			Began:   time.Now().Truncate(time.Second),
			Quick:   p.Quick,
			Machine: Machine{Text: machine.Describe(), Libraries: libraryVersions()},
		},
	}
}

// say prints a line of progress.
func (r *Runner) say(text string, args ...any) {
	fmt.Fprintf(r.progress, "%7s of %.0f s  %-10s %s\n", shortly(time.Since(r.began)), r.plan.For.Seconds(), r.scenario, fmt.Sprintf(text, args...))
}

// note adds what the reader has to know to the report.
func (r *Runner) note(text string, args ...any) {
	s := fmt.Sprintf(text, args...)
	if !slices.Contains(r.report.Notes, s) {
		r.report.Notes = append(r.report.Notes, s)
		r.say("note: %s", s)
	}
}

// know lists a contestant in the report.
func (r *Runner) know(c Contestant) {
	if !slices.ContainsFunc(r.report.Setups, func(a About) bool { return a.Name == c.Name }) {
		r.report.Setups = append(r.report.Setups, About{c.Name, c.Kind, c.How})
	}
}

// Run measures the scenarios and returns the report. All of it takes about as long as the
// plan says: what a case takes in any case is set aside, and the rest is divided anew
// before each case, so that what took longer than it should shortens what comes after.
// What has not begun when the time is well over is left out, and the report says so.
func (r *Runner) Run(ctx context.Context, scenarios []Scenario) (*Report, error) {
	if err := r.invite(ctx); err != nil {
		return nil, err
	}
	load := machine.Watch()
	var cases []*testCase
	for _, s := range scenarios {
		r.scenario = s.Name
		planned, err := s.plan(ctx, r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
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
	if r.plan.Part {
		fixed := time.Since(r.began)
		for _, c := range cases {
			fixed += c.fixed
		}
		r.plan.For = max(r.plan.For, fixed+fixed/4)
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
		if err := r.compare(ctx, c, budget(r.plan.For-time.Since(r.began), cases[i:])+c.fixed); err != nil {
			return nil, fmt.Errorf("%s, %s: %w", c.scenario, c.name, err)
		}
	}
	r.report.Took = time.Since(r.began).Round(time.Millisecond)
	r.report.Machine.Foreign = load.Stop()
	r.report.Compared = comparisons(r.report.Sections)
	r.report.Goals = goals(r.report.Sections)
	r.report.Summary = summarize(r.report.Compared)
	return r.report, nil
}

// title is how the progress calls a case.
func (c *testCase) title() string { return c.section.Title + ", " + c.name }

// invite starts the servers that contestants bring along, and sends those away whose
// program is not here.
func (r *Runner) invite(ctx context.Context) error {
	var failed error
	r.contestants = slices.DeleteFunc(slices.Clone(r.contestants), func(c Contestant) bool {
		if c.Brings == nil || failed != nil {
			return false
		}
		g, err := c.Brings(ctx)
		if missing(err) {
			r.note("%s is left out: %v", c.Name, firstLine(err))
			return true
		}
		if err != nil {
			failed = fmt.Errorf("%s: %w", c.Name, err)
			return false
		}
		r.guests[c.Name] = g
		r.report.Machine.Servers = append(r.report.Machine.Servers, g.Version)
		return false
	})
	return failed
}

// missing reports whether a server's program is not here, or cannot be started here.
func missing(err error) bool {
	var m *server.MissingError
	return errors.As(err, &m) || errors.Is(err, server.ErrUnsupported) || errors.Is(err, ErrMissing)
}

// Close stops the servers, and the processes that waited.
func (r *Runner) Close() error {
	errs := []error{r.waiters.close()}
	for _, g := range r.guests {
		errs = append(errs, g.Close())
	}
	for _, s := range slices.Concat(r.others, slices.Concat(slices.Collect(maps.Values(r.started))...)) {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// servers returns n servers of a kind, and false where the program is missing.
func (r *Runner) servers(ctx context.Context, kind server.Kind, n int) ([]*server.Server, bool, error) {
	for len(r.started[kind]) < n {
		s, err := r.start(ctx, kind)
		if s == nil {
			return nil, false, err
		}
		r.started[kind] = append(r.started[kind], s)
	}
	return r.started[kind][:n], true, nil
}

// fresh is servers of which no other case knows, so that they hold nothing: among many
// keys a server finds out late that one has expired.
func (r *Runner) fresh(ctx context.Context, kind server.Kind, n int) (list []*server.Server, ok bool, err error) {
	for range n {
		s, err := r.start(ctx, kind)
		if s == nil {
			return nil, false, err
		}
		r.others = append(r.others, s)
		list = append(list, s)
	}
	return list, true, nil
}

// start starts a server; it is nil where the program is missing.
func (r *Runner) start(ctx context.Context, kind server.Kind) (*server.Server, error) {
	cfg := server.Config{Kind: kind}
	if kind == server.KindPostgres { // waiters have connections of their own
		cfg.Settings = []server.Setting{{Name: "max_connections", Value: "700"}}
	}
	s, err := server.Start(ctx, cfg)
	if missing(err) {
		r.note("%s is left out: %v", kind, firstLine(err))
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if v := version(s); !slices.Contains(r.report.Machine.Servers, v) {
		r.report.Machine.Servers = append(r.report.Machine.Servers, v)
	}
	return s, nil
}

// fives returns the kinds of which five servers are measured here.
func (r *Runner) fives(ctx context.Context) ([]server.Kind, error) {
	kinds := []server.Kind{server.KindRedis}
	if r.plan.BothKinds {
		kinds = append(kinds, server.KindValkey)
	}
	return r.kinds(ctx, kinds...)
}

// on is what a case's name says of its servers: nothing of those that most cases have.
func on(kind server.Kind) string {
	if kind == server.KindRedis {
		return ""
	}
	return ", " + string(kind) + "s"
}

// kinds returns which of these kinds can be started here.
func (r *Runner) kinds(ctx context.Context, kinds ...server.Kind) ([]server.Kind, error) {
	var out []server.Kind
	for _, k := range kinds {
		_, ok, err := r.servers(ctx, k, 1)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, k)
		}
	}
	return out, nil
}

// version returns the server's name and version.
func version(s *server.Server) string {
	if s.Kind() != server.KindRedis && s.Kind() != server.KindValkey {
		return string(s.Kind())
	}
	reply, _ := s.Do("INFO", "server")
	text, _ := reply.(string)
	for _, field := range []string{"valkey_version", "redis_version"} {
		if _, rest, ok := strings.Cut(text, "\n"+field+":"); ok {
			v, _, _ := strings.Cut(rest, "\r")
			return string(s.Kind()) + " " + v
		}
	}
	return string(s.Kind())
}

// serving returns the contestants that can take part: all that make attempts, or those
// that pick picks.
func (r *Runner) serving(kind server.Kind, nodes int, pick func(Contestant) bool) []Contestant {
	var out []Contestant
	for _, c := range r.contestants {
		picked := !c.OnlyWaits
		if pick != nil {
			picked = pick(c)
		}
		if picked && c.Serves(kind, nodes) {
			out = append(out, c)
		}
	}
	return out
}

// direct makes a setup of servers without proxies.
func direct(servers []*server.Server, ttl time.Duration) *Setup {
	s := &Setup{TTL: ttl}
	for _, n := range servers {
		s.Nodes = append(s.Nodes, Node{n.Kind(), n.Addr(), n.Addr()})
	}
	return s
}

// proxied makes a setup with a proxy in front of each node.
func proxied(nodes []Node, ttl time.Duration) (*Setup, []*fault.Proxy, error) {
	s := &Setup{TTL: ttl}
	var proxies []*fault.Proxy
	for _, n := range nodes {
		p, err := fault.Start(n.Direct)
		if err != nil {
			closeAll(proxies)
			return nil, nil, err
		}
		proxies = append(proxies, p)
		s.Nodes = append(s.Nodes, Node{n.Kind, p.Addr(), n.Direct})
	}
	return s, proxies, nil
}

func closeAll(proxies []*fault.Proxy) {
	for _, p := range proxies {
		_ = p.Close() // only its own sockets are left to go
	}
}

// firstLine keeps an error to one line of a table's note.
func firstLine(err error) string {
	s, _, _ := strings.Cut(err.Error(), "\n")
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}

// libraryVersions returns the versions of the client libraries and the lock libraries in this program.
func libraryVersions() (list []string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	for _, m := range info.Deps {
		for _, name := range []string{"redis/go-redis", "valkey-io/valkey-go", "redis/rueidis", "go-redsync/", "bsm/redislock", "go-pglock", "jackc/pgx", "etcd/client/v3"} {
			if strings.Contains(m.Path, name) && !strings.HasSuffix(m.Path, "compat") {
				list = append(list, strings.TrimPrefix(m.Path, "github.com/")+" "+m.Version)
			}
		}
	}
	return list
}
