package deploy

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	_ "github.com/redlock-go/redlock/drivers/all"
	"github.com/redlock-go/redlock/drivers/memory"
	_ "github.com/redlock-go/redlock/drivers/sqltable/pgtable"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// thirdParty is another party's driver, over memory, which offers only locks.
type thirdParty struct{}

func (thirdParty) Open(cfg *driver.Config) (driver.Backend, error) {
	return plainBackend{space.Peer(), "third party"}, nil
}

var space = memory.New()

type plainBackend struct {
	driver.Backend
	name string
}

func (b plainBackend) Info() driver.Info {
	i := b.Backend.Info()
	i.Name = b.name
	return i
}

func init() { dlock.Register("thirdparty", thirdParty{}) }

// measured makes a short measurement, and returns its report and progress.
func measured(t *testing.T, url string) (*Report, string) {
	t.Helper()
	var progress bytes.Buffer
	r, err := Measure(t.Context(), Options{URL: url, For: time.Second, Rounds: 3, Share: 0.5}, &progress)
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	folder := t.TempDir()
	if err := r.Write(folder); err != nil {
		t.Fatal(err)
	}
	html, err := os.ReadFile(filepath.Join(folder, "report.html"))
	if err != nil || !bytes.Contains(html, []byte("<svg class=")) || bytes.Contains(html, []byte("ZgotmplZ")) {
		t.Errorf("report.html has no plot, or a hole: error %v", err)
	}
	if text := r.Text(); !strings.HasPrefix(text, r.Lead) || !strings.Contains(text, "Left behind: ") {
		t.Errorf("the report does not begin with its lead, or does not say what is left: %s", text)
	}
	return r, progress.String()
}

// five starts five servers, and returns the URL of their quorum, with the addresses that via
// returns.
func five(t *testing.T, options string, via func(i int, s *server.Server) string) (url string, all []*server.Server) {
	t.Helper()
	url = "redlock:"
	for i := range 5 {
		s := server.Redis(t)
		all = append(all, s)
		url += "redis://" + via(i, s) + ","
	}
	return url + options, all
}

func direct(_ int, s *server.Server) string { return s.Addr() }

// nothingLeft fails the test for every key that a server still has.
func nothingLeft(t *testing.T, password string, all ...*server.Server) {
	t.Helper()
	for _, s := range all {
		c := redis.NewClient(&redis.Options{Addr: s.Addr(), Password: password})
		names, err := c.Keys(context.Background(), "*").Result()
		if err != nil || len(names) > 0 {
			t.Errorf("%s has %q, error %v", s.Addr(), names, err)
		}
		_ = c.Close()
	}
}

func TestAFreshQuorumIsMeasuredAtOnceAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	url, all := five(t, "ttl=5s", direct)
	r, progress := measured(t, url)
	if !strings.HasPrefix(r.Lead, "Your quorum of 5: acquire ") || !strings.Contains(r.Lead, "× the majority's round trip") {
		t.Errorf("lead: %s", r.Lead)
	}
	if strings.Contains(progress, "restart guard") {
		t.Errorf("it waited for the restart guard, though it can declare its prefix new: %s", progress)
	}
	for _, name := range []string{"majority's round trip", "bare acquire", "bare release", "acquire", "release", "handoff"} {
		if row := r.find(name); row == nil || row.Samples == 0 || row.Median.Median <= 0 {
			t.Errorf("%s was not measured: %+v", name, row)
		}
	}
	if len(r.Nodes) != 5 || len(r.Steps) == 0 || r.Steps[0].Server < 0 {
		t.Errorf("nodes %+v, ladder %+v", r.Nodes, r.Steps)
	}
	if !strings.HasPrefix(r.Left, "nothing: ") {
		t.Errorf("left behind: %s", r.Left)
	}
	nothingLeft(t, "", all...)
}

func TestANodeThatIsFarAwayIsNamed(t *testing.T) {
	server.Deep(t)
	t.Parallel()
	url, _ := five(t, "node_timeout=5s,ttl=30s", func(i int, s *server.Server) string {
		if i != 2 {
			return s.Addr()
		}
		p := fault.NewProxy(t, s.Addr())
		p.RTT(15 * time.Millisecond)
		return p.Addr()
	})
	r, _ := measured(t, url)
	if c := r.Nodes[2]; c.Samples == 0 || c.Median.Median < 0.015 {
		t.Errorf("node c is %v s away, and is behind a proxy of 15 ms", c.Median.Median)
	}
}

// figured returns a run over a quorum of five with these round trips, in seconds (zero: no
// answer), and this acquisition.
func figured(trips []float64, acquire float64) *run {
	r := newRun(Options{})
	r.target, r.votes = &target{}, 1000
	r.parts.whole = plainBackend{space, "quorum"}
	r.target.Client, _ = dlock.New(space.Peer())
	seconds := func(s float64) *figures.Latencies {
		l := figures.NewLatencies()
		for range 200 {
			l.Add(time.Duration(s * float64(time.Second)))
		}
		return l
	}
	for i, t := range trips {
		p := newProbe(space)
		p.name, p.ping, p.inVotes = fmt.Sprintf("10.0.0.%d:6379", i), func(context.Context) error { return nil }, r.votes
		for round := range 8 {
			if t > 0 {
				p.trips.Add(round, seconds(t))
			} else {
				p.silent++
			}
		}
		if t == 0 || t > 0.01 {
			p.inVotes = 0
		}
		r.nodes = append(r.nodes, p)
	}
	for round := range 8 {
		r.trip.Add(round, seconds(trips[0]))
		r.acquire.Add(round, seconds(acquire))
	}
	return r
}

func TestTheLeadAndTheAdviceFollowFromTheFigures(t *testing.T) {
	r := figured([]float64{0.002, 0.002, 0.05, 0.002, 0.002}, 0.0022)
	slow := func(node string) driver.Diagnostic {
		return driver.Diagnostic{Code: "round-trip-slow", Severity: driver.SeverityWarning, Node: "redis://" + node + "/0", Measured: "60ms", Summary: "its vote comes too late"}
	}
	out := r.report(0.1, []driver.Diagnostic{slow("10.0.0.2:6379"), slow("10.0.0.3:6379")})
	if want := "Your quorum of 5: acquire 2.20 ms at the median, 1.10 × the majority's round trip; p99 2.20 ms; node c is 50.0 ms away and costs nothing."; out.Lead != want {
		t.Errorf("lead %q, want %q", out.Lead, want)
	}
	if len(out.Advice) != 2 || !strings.Contains(out.Advice[0], "node c (10.0.0.2:6379) was in the majority of none of 1000 acquisitions") || out.Advice[1] != "node c (10.0.0.2:6379): its vote comes too late" {
		t.Errorf("advice: %q", out.Advice)
	}
	if out = r.report(float64(runtime.NumCPU()), nil); !strings.Contains(out.Lead, "costs nothing; others used ") || len(out.Advice) != 2 {
		t.Errorf("beside load: lead %q, advice %q", out.Lead, out.Advice)
	}
	// In five rounds of eight the machine stalled: that is no distance, and its rounds, with few
	// samples each, do not make a median that is above the p90.
	r = figured([]float64{0.002, 0.002, 0.002, 0.002, 0.002}, 0.0022)
	for round := range 5 {
		slow := figures.NewLatencies()
		slow.Add(time.Second)
		for _, s := range []*figures.Rounds{r.nodes[1].trips, r.acquire} {
			s.Add(round, slow)
		}
	}
	if out = r.report(0.1, nil); !strings.HasPrefix(out.Lead, "Your quorum of 5: acquire 2.20 ms at the median, 1.10 to 500 × the majority's round trip; p99 ") || strings.Contains(out.Lead, "away") {
		t.Errorf("after stalls: lead %q", out.Lead)
	}
	r = figured([]float64{0.002, 0.002, 0.002, 0.002, 0}, 0.02)
	r.nodes[1].timeouts = 20
	out = r.report(0.1, []driver.Diagnostic{{Code: "quorum-size", Severity: driver.SeverityWarning, Summary: "4 nodes outlive the loss of 1, as 3 do"}, {Code: "version", Severity: driver.SeverityWarning, Summary: "old"}})
	if !strings.Contains(out.Lead, "node e does not answer.") {
		t.Errorf("lead: %q", out.Lead)
	}
	for i, want := range []string{"node b (10.0.0.1:6379) did not answer within the node timeout in 2 % of the acquisitions", "node e (10.0.0.4:6379) answered in none of 8 rounds: bring it back; until then the quorum survives the loss of 1 more, and not of 2", "4 nodes outlive", "an acquisition takes 10.0 × (10.0 – 10.0) the majority's round trip"} {
		if i >= len(out.Advice) || !strings.Contains(out.Advice[i], want) {
			t.Errorf("advice %d: %q, want %q", i, out.Advice, want)
		}
	}
}

func TestANodeThatHangsIsNamed(t *testing.T) {
	server.Deep(t)
	t.Parallel()
	url, all := five(t, "ttl=2s,node_timeout=300ms", direct)
	if err := all[4].Pause(); err != nil {
		t.Fatal(err)
	}
	r, _ := measured(t, url)
	if !strings.Contains(r.Circumstances(), "restart_guard=off") {
		t.Errorf("it does not say that the guard is off: %s", r.Circumstances())
	}
	if !strings.Contains(r.Lead, "node e does not answer") {
		t.Errorf("lead: %s", r.Lead)
	}
	if !strings.Contains(r.Left, "could not be cleaned") {
		t.Errorf("left behind: %s", r.Left)
	}
	nothingLeft(t, "", all[:4]...)
}

func TestAQuorumWithAPasswordShowsItNowhere(t *testing.T) {
	t.Parallel()
	const password = "s3cret"
	url := "redlock:"
	var all []*server.Server
	for range 3 {
		s := server.Redis(t, server.WithPassword(password))
		all, url = append(all, s), url+"redis://:"+password+"@"+s.Addr()+","
	}
	r, progress := measured(t, strings.TrimSuffix(url, ","))
	if text := r.Text() + progress + fmt.Sprintf("%+v", r); strings.Contains(text, password) {
		t.Errorf("the password is in %s", text)
	}
	nothingLeft(t, password, all...)
}

func TestAnEvenQuorumIsAdvisedAgainst(t *testing.T) {
	server.Deep(t)
	t.Parallel()
	url := "redlock:"
	for range 2 {
		url += "redis://" + server.Redis(t).Addr() + ","
	}
	r, _ := measured(t, url+"restart_guard=off")
	if !strings.Contains(strings.Join(r.Advice, "\n"), "does not survive the loss of a node") {
		t.Errorf("advice: %q", r.Advice)
	}
}

func TestPostgresAndOtherDriversAreMeasured(t *testing.T) {
	server.Deep(t)
	t.Parallel()
	postgres := "postgres://" + server.Superuser + "@" + server.Postgres(t).Addr() + "/postgres?sslmode=disable"
	for _, c := range []struct {
		url, lead, left string
		bare            bool
	}{
		{postgres, "× a round trip", "no lock; the sequence dlock_fence", true},
		{"valkey://" + server.Valkey(t).Addr() + "?prefix=app:", "× a round trip", "nothing: ", true},
		{strings.Replace(postgres, "postgres:", "pgtable:", 1) + "&setup=on", "× a lookup", "no lock; the rows of its keys are deleted", false},
		{"file://" + t.TempDir(), "Your file", "no lock", false},
		{"memory:", "Your memory", "no lock", false},
		{"thirdparty:", "Your third party", "what else the driver keeps under", false},
	} {
		wrong := func(r *Report) string {
			switch known := strings.Contains(r.Circumstances(), "Servers: "); {
			case !strings.Contains(r.Lead, c.lead) || !strings.Contains(r.Left, c.left):
				return fmt.Sprintf("lead %q, left behind %q", r.Lead, r.Left)
			case known != c.bare:
				return fmt.Sprintf("the server's version is in the report: %v, want %v: %s", known, c.bare, r.Circumstances())
			case c.bare != (r.find("bare acquire") != nil):
				return fmt.Sprintf("bare commands %v, want %v", !c.bare, c.bare)
			}
			return ""
		}
		r, _ := measured(t, c.url)
		for range 4 { // a machine that stalls proves nothing
			if wrong(r) == "" {
				break
			}
			t.Log(c.url, wrong(r))
			r, _ = measured(t, c.url)
		}
		if text := wrong(r); text != "" {
			t.Errorf("%s: %s", c.url, text)
		}
	}
}

// The driver's Lookup opens a session. So it takes far longer than the round trip with which an
// acquisition is compared.
func TestARoundTripToPostgresIsOneMessage(t *testing.T) {
	server.Deep(t)
	t.Parallel()
	c, err := open("postgres://"+server.Superuser+"@"+server.Postgres(t).Addr()+"/postgres?sslmode=disable", ownPrefix(), false)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // it held nothing
	b := newBare(t.Context(), fan{newProbe(c.nodes[0])}, c.whole, "bare/")
	if b == nil || b.ping == nil {
		t.Fatalf("PostgreSQL has no round trip of its own: %+v", b)
	}
	defer b.close()
	if err := b.ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWhatCannotBeMeasuredIsSaidInALine(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://127.0.0.1:1":         "127.0.0.1:1",
		"nonsense://host":             "nonsense",
		"redis://127.0.0.1:1?speed=9": "speed",
	} {
		var progress bytes.Buffer
		_, err := Measure(t.Context(), Options{URL: url, For: time.Second, Rounds: 3, Share: 0.5}, &progress)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), under) {
			t.Errorf("%s: %v", url, err)
		}
	}
}
