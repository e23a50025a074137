package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/benchmark/internal/machine"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// Whole is how long a run of all cases takes.
const Whole = 500 * time.Second

const (
	ttl    = 10 * time.Second
	fewest = 12 // rounds: a comparison needs them, however long they take
	// maxRound bounds a contestant's time in a round, so that one that hangs ends.
	maxRound = time.Minute
)

// Contestants returns all contestants of this package.
func Contestants() []Contestant { return append(own(), limits()...) }

// runner measures cases, one after the other. It starts servers when a case needs them.
type runner struct {
	progress io.Writer
	began    time.Time
	length   time.Duration // of the whole run
	report   *Report
	started  map[server.Kind][]*server.Server
}

// Run measures those cases and contestants whose "scenario/case/contestant" match, all if match
// is nil, for about so long; zero: Whole, or the part of it that the cases would have. The time
// is divided anew before each case, so that a case that takes too long shortens the later ones.
// Cases that have not begun when the time is well over are left out, and the report says so.
func Run(ctx context.Context, match *regexp.Regexp, length time.Duration, peers []Contestant, progress io.Writer) (report *Report, err error) {
	cases := Cases(append(Contestants(), peers...))
	all := weights(cases)
	for _, c := range cases {
		c.Rows = slices.DeleteFunc(c.Rows, func(r *Row) bool { return match != nil && !match.MatchString(c.Title()+"/"+r.String()) })
	}
	if weights(cases) == 0 {
		return nil, errors.New("there is nothing to measure: nothing matches")
	}
	if length == 0 {
		length = time.Duration(float64(Whole) * weights(cases) / all)
	}
	r := &runner{progress: progress, began: time.Now(), length: length, started: map[server.Kind][]*server.Server{}}
	r.report = &Report{Began: r.began, Whole: match == nil && length >= Whole, Machine: machine.Describe(), Libraries: machine.Libraries("redis/go-redis", "valkey-io/valkey-go", "redis/rueidis", "go-redsync/", "bsm/redislock", "go-pglock", "jackc/pgx", "etcd/client/v3", "hashicorp/consul/api")}
	defer func() {
		for _, s := range slices.Concat(slices.Collect(maps.Values(r.started))...) {
			err = errors.Join(err, s.Close())
		}
	}()
	return r.report, r.run(ctx, slices.DeleteFunc(cases, func(c *Case) bool { return len(c.Rows) == 0 }))
}

func (r *runner) run(ctx context.Context, cases []*Case) error {
	start := machine.Now()
	for i, c := range cases {
		left := r.length - time.Since(r.began)
		if left < -r.length/8 {
			r.note("the time was over before %s: there is more with -for", c.Title())
			continue
		}
		r.say("%d of %d: %s", i+1, len(cases), c.Title())
		servers, err := r.servers(ctx, c.ground)
		if missing := (*server.MissingError)(nil); errors.As(err, &missing) || errors.Is(err, server.ErrUnsupported) {
			r.note("%s is left out: %s", c.Title(), firstLine(err))
			continue
		}
		if err == nil {
			before := machine.Now()
			err = r.compare(ctx, c, servers, time.Duration(float64(left)*c.weight()/weights(cases[i:])))
			c.Foreign = machine.Now().Foreign(before)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c.Title(), err)
		}
		r.report.Cases = append(r.report.Cases, c)
		for _, row := range c.Rows {
			if text := row.trouble(); text != "" {
				r.note("%s: %s", c.Title(), text)
			}
		}
	}
	r.report.Took, r.report.Foreign = time.Since(r.began), machine.Now().Foreign(start)
	return nil
}

// say prints a line of progress.
func (r *runner) say(text string, args ...any) {
	fmt.Fprintf(r.progress, "%5.0f s of %.0f s  %s\n", time.Since(r.began).Seconds(), r.length.Seconds(), fmt.Sprintf(text, args...))
}

// note says something that the report says, too.
func (r *runner) note(text string, args ...any) {
	r.report.Notes = append(r.report.Notes, fmt.Sprintf(text, args...))
	r.say(text, args...)
}

// compare measures the contestants of a case in turn. An error ends the run; the failure of a
// contestant is in its row instead.
func (r *runner) compare(ctx context.Context, c *Case, servers []*server.Server, budget time.Duration) error {
	end := time.Now().Add(budget)
	setup := &Setup{TTL: ttl}
	var proxies []*fault.Proxy
	for i, s := range servers {
		addr := s.Addr()
		if c.link != nil {
			p, err := fault.Start(addr)
			if err != nil {
				return err
			}
			defer p.Close() //nolint:errcheck // it can only fail to close its own sockets
			p.RTT(time.Duration(c.link.rtts[i]) * time.Millisecond)
			proxies, addr = append(proxies, p), p.Addr()
		}
		setup.Addrs = append(setup.Addrs, addr)
	}
	for i, row := range c.Rows {
		row.keys, row.servers = strconv.Itoa(i)+"/", servers
		defer row.close()
		row.open(ctx, setup, c.clients)
	}
	if c.link == nil || !c.link.silent {
		return rounds(ctx, c, end, func() {})
	}
	last := proxies[len(proxies)-1]
	defer last.Restore() //nolint:errcheck // clients can then close without waiting for the silent node
	return rounds(ctx, c, end, last.BlackHole)
}

// open opens the clients of a row.
func (r *Row) open(ctx context.Context, s *Setup, n int) {
	for range n {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		c, err := r.Open(ctx, s)
		cancel()
		if err != nil {
			r.Err, r.out = fmt.Errorf("open: %w", err), true
			return
		}
		r.clients = append(r.clients, c)
	}
}

// rounds gives every contestant a turn per round, in an order that changes, until the time is
// over. Round zero warms up and does not count; ready is called behind it, so that contestants
// connect before a fault, like processes that have run for a while.
func rounds(ctx context.Context, c *Case, end time.Time, ready func()) error {
	budget := max(time.Until(end), 0)
	for round := 0; ; round++ {
		now := time.Now()
		if round > fewest && now.After(end) || round > 1 && now.After(end.Add(budget)) {
			return nil // twice the time is the bound even for the fewest rounds
		}
		if round == 1 {
			ready()
		}
		active := slices.DeleteFunc(slices.Clone(c.Rows), func(r *Row) bool { return r.out })
		if len(active) == 0 {
			return nil
		}
		for _, i := range rand.Perm(len(active)) {
			took := active[i].turn(ctx, c, round)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if active[i].Slow { // the others keep their time
				end = end.Add(took)
			}
		}
	}
}

// turn measures a contestant once, and returns how long that took.
func (r *Row) turn(ctx context.Context, c *Case, round int) (took time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, maxRound)
	defer cancel()
	r.round = round
	begun := time.Now()
	c.measure(ctx, r, c.slice)
	took = time.Since(begun)
	r.Slow = c.patience > 0 && took > c.slice+c.patience
	r.out = r.Slow || round == 0 && r.Failed >= mostFailures
	return took
}

// servers returns the servers of a ground, starting them if needed.
func (r *runner) servers(ctx context.Context, g ground) ([]*server.Server, error) {
	for len(r.started[g.kind]) < g.n {
		s, err := start(ctx, g.kind)
		if err != nil {
			return nil, err
		}
		r.started[g.kind] = append(r.started[g.kind], s)
		if v := version(ctx, s); !slices.Contains(r.report.Servers, v) {
			r.report.Servers = append(r.report.Servers, v)
		}
	}
	return r.started[g.kind][:g.n], nil
}

func start(ctx context.Context, kind server.Kind) (*server.Server, error) {
	cfg := server.Config{Kind: kind}
	switch kind {
	case server.KindPostgres: // each waiter has its own connections
		cfg.Settings = []server.Setting{{Name: "max_connections", Value: "700"}}
	case server.KindEtcd, server.KindConsul:
		start := server.StartEtcd
		if kind == server.KindConsul {
			start = server.StartConsul
		}
		g, err := start(ctx, 1, cfg)
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
	case server.KindConsul:
		if c, err := api.NewClient(&api.Config{Address: s.Addr()}); err == nil {
			self, _ := c.Agent().Self()
			found, _ = self["Config"]["Version"].(string)
		}
	default:
		info, _ := s.Do("INFO", "server")
		text, _ := info.(string)
		_, found, _ = strings.Cut(InfoVersion(text), " ")
	}
	return strings.TrimSpace(string(s.Kind()) + " " + found)
}
