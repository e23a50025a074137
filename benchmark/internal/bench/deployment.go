package bench

import (
	"context"
	"crypto/rand"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redlock-go/redlock/dlock"
)

// tryURL finds out whether the URL can be opened, without any I/O.
func tryURL(url string) error {
	b, err := dlock.OpenBackend(url)
	if err != nil {
		return err
	}
	return b.Close()
}

// deployment returns the contestants for a user's own servers: dlock and the driver as
// the URL says and, where it is one Redis or Valkey, the bare commands.
func deployment(url string) ([]Contestant, error) {
	ours := Contestant{
		Name: "dlock", Kind: Ours, Client: "yours", Serves: noServer, Waits: true, Renews: true,
		Local: strings.HasPrefix(url, "memory:"),
		How:   "dlock.OpenURL with the URL that was given",
		Open:  func(_ context.Context, s *Setup) (Locker, error) { return openClient(url, s) },
	}
	part := ours
	part.Name, part.Kind, part.Waits = "driver", Part, false
	part.How = "the driver alone, without dlock"
	part.Open = func(_ context.Context, s *Setup) (Locker, error) { return openBackend(url, s) }
	list := []Contestant{ours, part}
	scheme, _, _ := strings.Cut(url, ":")
	if scheme != "redis" && scheme != "rediss" {
		return list, nil
	}
	address, _, _ := strings.Cut(url, "?") // its parameters are ours
	opts, err := redis.ParseURL(address)
	if err != nil {
		return list, nil // of a form that go-redis does not know: no limit then
	}
	return append(list, Contestant{
		Name: "bare, yours", Kind: Limit, Client: "yours", Serves: noServer, Renews: true,
		How: "SET NX PX and compare-and-delete, over go-redis with its default pool, without retries",
		Open: func(ctx context.Context, s *Setup) (Locker, error) {
			o := *opts
			o.MaxRetries, o.ContextTimeoutEnabled, o.Protocol = -1, true, 2
			conn := goRedis{redis.NewClient(&o)}
			p, err := loadBare(ctx, conn, s)
			if err != nil {
				_ = conn.close() // the error before says more
				return nil, err
			}
			node := &limitNode{commands: conn, protocol: p, slots: make(chan struct{}, maxHung)}
			return &limit{setup: s, nodes: []*limitNode{node}, how: early}, nil
		},
	}), nil
}

// onDeployment returns those scenarios that need no server of their own, made to measure
// what a URL opens.
func onDeployment(list []Scenario) []Scenario {
	var out []Scenario
	for _, s := range list {
		if run := deploymentRuns[s.Name]; run != nil {
			out = append(out, Scenario{s.Name, s.What, s.share, run})
		}
	}
	return out
}

var deploymentRuns = map[string]func(context.Context, *Runner) ([]*testCase, error){
	"single": func(_ context.Context, r *Runner) ([]*testCase, error) {
		s := latencySection("Latency", "One goroutine takes a lock, renews it and gives it back, over and over.")
		return []*testCase{r.local(&testCase{section: s, name: "your servers", heavy: 1, measurement: r.latencyMeasurement})}, nil
	},
	"throughput": func(_ context.Context, r *Runner) ([]*testCase, error) {
		return r.localThroughput("Throughput", "Goroutines of this process share one client and take locks on keys of their own."), nil
	},
	"handoff": func(_ context.Context, r *Runner) ([]*testCase, error) {
		return r.localHandoff("Handing over"), nil
	},
	"held": func(_ context.Context, r *Runner) ([]*testCase, error) {
		return r.heldOn(r.heldSection(), nil), nil
	},
}

// randomKeys returns a prefix for keys that nobody else has on servers that are not ours
// alone.
func randomKeys() string { return "benchmark/" + rand.Text() + "/" }
