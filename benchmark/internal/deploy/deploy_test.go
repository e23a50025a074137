package deploy

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

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

// measured makes a short measurement, and returns its report as one line, and its progress.
func measured(t *testing.T, url string) (text, progress string) {
	t.Helper()
	var said bytes.Buffer
	r, err := Measure(t.Context(), url, time.Second, &said)
	if err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	return strings.Join(strings.Fields(r.Text()), " "), said.String()
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
	text, progress := measured(t, url)
	if !strings.HasPrefix(text, "Your quorum of 5: acquire ") {
		t.Errorf("lead: %s", text)
	}
	if strings.Contains(progress, "restart guard") {
		t.Errorf("it waited for the restart guard, though it can declare its prefix new: %s", progress)
	}
	for _, want := range []string{"× the majority's round trip", "| majority's round trip | ", "| acquire ", "| release ", "| handoff ", "| node e (" + all[4].Addr() + ")", "redis 7", "| goroutines ", "Left behind: nothing: "} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q: %s", want, text)
		}
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
	text, _ := measured(t, url)
	_, c, _ := strings.Cut(text, "| node c (")
	if _, c, _ = strings.Cut(c, "| "); !regexp.MustCompile(`^(1[5-9]|[2-9][0-9])\.[0-9] ms|^[1-9][0-9][0-9] ms`).MatchString(c) {
		t.Errorf("node c is behind a proxy of 15 ms: %.20s: %s", c, text)
	}
}

// figured returns a run over a quorum of five with these round trips, in seconds (zero: no
// answer), and this acquisition.
func figured(trips []float64, acquire float64) *run {
	r := &run{target: &target{}, votes: 1000}
	r.Client, _ = dlock.New(plainBackend{space, "quorum"})
	for i, trip := range trips {
		n := &node{name: fmt.Sprintf("10.0.0.%d:6379", i), inVotes: r.votes}
		for round := range rounds {
			if trip > 0 {
				n.trips.Add(round, slices.Repeat([]float64{trip}, 200)...)
			} else {
				n.silent++
			}
		}
		if trip == 0 || trip > 0.01 {
			n.inVotes = 0
		}
		r.nodes = append(r.nodes, n)
	}
	for round := range rounds {
		r.trip.Add(round, trips[0])
		r.acquire.Add(round, slices.Repeat([]float64{acquire}, 200)...)
	}
	return r
}

func TestTheLeadAndTheAdviceFollowFromTheFigures(t *testing.T) {
	out := figured([]float64{0.002, 0.002, 0.05, 0.002, 0.002}, 0.0022).report(0.1)
	if want := "Your quorum of 5: acquire 2.20 ms at the median, 1.10 × the majority's round trip; p99 2.20 ms; node c is 50 ms away and costs nothing."; out.Lead != want {
		t.Errorf("lead %q, want %q", out.Lead, want)
	}
	if len(out.Advice) != 1 || !strings.Contains(out.Advice[0], "node c (10.0.0.2:6379) was in the majority of none of 1000 acquisitions") {
		t.Errorf("advice: %q", out.Advice)
	}
	if out = figured([]float64{0.002}, 0.0022).report(float64(runtime.NumCPU())); !strings.Contains(out.Lead, "; others used ") || len(out.Advice) != 1 {
		t.Errorf("beside load: lead %q, advice %q", out.Lead, out.Advice)
	}
	// In some rounds the machine stalled: that is no distance, and its rounds, with few samples
	// each, do not make a median that is above the p90.
	r := figured([]float64{0.002, 0.002, 0.002, 0.002, 0.002}, 0.0022)
	for round := range rounds / 2 {
		r.nodes[1].trips.Add(round, 1)
		r.acquire.Add(round, 1)
	}
	if out = r.report(0.1); !strings.HasPrefix(out.Lead, "Your quorum of 5: acquire 2.20 ms at the median, 1.10 to 500 × the majority's round trip; p99 ") || strings.Contains(out.Lead, "away") {
		t.Errorf("after stalls: lead %q", out.Lead)
	}
	r = figured([]float64{0.002, 0.002, 0.002, 0.002, 0}, 0.02)
	r.nodes[1].timeouts = 20
	if out = r.report(0.1); !strings.Contains(out.Lead, "node e does not answer.") {
		t.Errorf("lead: %q", out.Lead)
	}
	for i, want := range []string{"node b (10.0.0.1:6379) did not answer within the node timeout in 2 % of the acquisitions", "node e (10.0.0.4:6379) answered in none of 20 rounds: bring it back; until then the quorum survives the loss of 1 more, and not of 2", "an acquisition takes 10 × (10 – 10) the majority's round trip"} {
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
	text, _ := measured(t, url)
	for _, want := range []string{"restart_guard=off", "node e does not answer", "could not be cleaned"} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q: %s", want, text)
		}
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
	text, progress := measured(t, strings.TrimSuffix(url, ","))
	if text += progress; strings.Contains(text, password) {
		t.Errorf("the password is in %s", text)
	}
	nothingLeft(t, password, all...)
}

func TestPostgresAndOtherDriversAreMeasured(t *testing.T) {
	server.Deep(t)
	t.Parallel()
	postgres := "postgres://" + server.Superuser + "@" + server.Postgres(t).Addr() + "/postgres?sslmode=disable"
	for url, want := range map[string][]string{
		postgres: {"× a round trip", "Left behind: no lock that this program knows of", "Servers: PostgreSQL"},
		"valkey://" + server.Valkey(t).Addr() + "?prefix=app:":              {"× a round trip", "Left behind: nothing: ", "Servers: valkey"},
		strings.Replace(postgres, "postgres:", "pgtable:", 1) + "&setup=on": {"× a lookup", "Left behind: no lock; "},
		"file://" + t.TempDir(): {"Your file", "Left behind: no lock"},
		"memory:":               {"Your memory", "Left behind: no lock"},
		"thirdparty:":           {"Your third party", "what else the driver keeps"},
	} {
		text, _ := measured(t, url)
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: it lacks %q: %s", url, w, text)
			}
		}
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
		_, err := Measure(t.Context(), url, time.Second, &progress)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), under) {
			t.Errorf("%s: %v", url, err)
		}
	}
}
