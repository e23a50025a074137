package bench

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// postgres measures the locks of PostgreSQL beside a connection for each lock.
func postgres(ctx context.Context, r *Runner) ([]*testCase, error) {
	servers, ok, err := r.servers(ctx, server.KindPostgres, 1)
	if err != nil || !ok {
		return nil, err
	}
	setup := direct(servers, r.plan.TTL)
	cases := append([]*testCase{r.postgresLatency(setup)}, r.postgresRate(setup)...)
	waiting := r.handoffSection("PostgreSQL: handing over")
	for _, w := range r.plan.Waiters {
		if w > maxPostgresClients {
			continue
		}
		c := &testCase{section: waiting, setup: setup, contestants: r.serving(server.KindPostgres, 1, waits)}
		cases = append(cases, r.handoffCase(c, w))
	}
	return append(cases, r.postgresHeld(setup)...), nil
}

// maxPostgresClients stays under the server's max_connections (see Runner.servers) with
// several connections for each client.
const maxPostgresClients = 128

func (r *Runner) postgresLatency(setup *Setup) *testCase {
	s := &Section{
		Title: "PostgreSQL: latency",
		Text:  "One goroutine, on loopback. The limit has a connection that nobody else uses.",
		Key:   pair + " p50",
		Plots: []Plot{{Title: "acquire+release, median", Metric: pair + " p50"}},
	}
	return &testCase{section: s, name: "postgres", contestants: r.serving(server.KindPostgres, 1, nil), setup: setup, clients: 1, heavy: 1, measurement: r.latencyMeasurement}
}

func (r *Runner) postgresRate(setup *Setup) (cases []*testCase) {
	s := &Section{
		Title: "PostgreSQL: throughput",
		Text:  "Goroutines of one process share one client and take locks on keys of their own.",
		Key:   "locks", More: true, Axis: "goroutines",
		Plots: []Plot{{Title: "locks per second", Metric: "locks", Lines: true}},
	}
	for _, g := range r.plan.Goroutines {
		cases = append(cases, &testCase{
			section: s, name: plural(g, "goroutine"), x: float64(g), contestants: r.serving(server.KindPostgres, 1, nil),
			setup: setup, clients: 1, heavy: 1, least: r.leastOf(g), measurement: r.throughputMeasurement(g),
		})
	}
	return cases
}

// postgresHeld counts the connections and statements of many leases.
func (r *Runner) postgresHeld(setup *Setup) (cases []*testCase) {
	s := &Section{
		Title: "PostgreSQL: held leases",
		Text: "One client takes that many locks, 64 at a time, and holds them while they renew themselves. Those that have a connection for each lock hold " + strconv.Itoa(fewLeases) + ". Connections are what the server counts; " +
			"transactions are the server's own count while nothing else is done: what the heartbeats cost it. It counts with a delay of up to a second." + r.holdings(),
		Key: "locks per connection", More: true,
	}
	few := r.plan.Held[0]
	few.Leases = fewLeases
	for _, h := range append([]Holding{few}, r.plan.Held...) {
		if h.Leases > maxPostgresLocks {
			continue
		}
		holds := func(c Contestant) bool { return c.Kind == Ours || c.Kind != Part && h.Leases == fewLeases }
		c := r.heldCase(s, h, r.serving(server.KindPostgres, 1, holds))
		c.setup, c.measurement = &Setup{Nodes: setup.Nodes, TTL: h.TTL}, r.postgresHeldMeasurement(h)
		cases = append(cases, c)
	}
	return cases
}

const (
	// fewLeases fit the pools of those that have a connection for each.
	fewLeases = 50
	// maxPostgresLocks is how many fit a server's lock table by default.
	maxPostgresLocks = 10_000
)

// postgresHeldMeasurement is heldMeasurement, seen from the server too.
func (r *Runner) postgresHeldMeasurement(h Holding) func(context.Context, *entry, time.Duration) *measurement {
	return func(ctx context.Context, e *entry, slice time.Duration) *measurement {
		failed := func(err error) *measurement { return &measurement{err: err} }
		admin, err := pgx.Connect(ctx, PostgresURL(e.setup.Nodes[0].Addr))
		if err != nil {
			return failed(err)
		}
		defer func() { _ = closeConn(admin) }() // it has served
		var others []int32
		err = admin.QueryRow(ctx, "SELECT array_agg(pid) FROM pg_stat_activity WHERE backend_type = 'client backend'").Scan(&others)
		if err != nil {
			return failed(err)
		}
		return heldMeasurement(r.keys, h.Leases, func(ctx context.Context, t *measurement, l Locker) error {
			return watchPostgres(ctx, t, l, admin, h.Leases, others, h.Watched)
		})(ctx, e, slice)
	}
}

// watchPostgres counts while leases are held. others are connections of before.
func watchPostgres(ctx context.Context, t *measurement, l Locker, admin *pgx.Conn, n int, others []int32, d time.Duration) error {
	const (
		sessions     = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> ALL($1)"
		transactions = "SELECT coalesce(sum(xact_commit + xact_rollback), 0)::bigint FROM pg_stat_database"
	)
	var connections, first, last int
	if err := admin.QueryRow(ctx, sessions, others).Scan(&connections); err != nil {
		return err
	}
	if err := admin.QueryRow(ctx, transactions).Scan(&first); err != nil {
		return err
	}
	if err := watch(ctx, t, l, d, nil); err != nil {
		return err
	}
	if err := admin.QueryRow(ctx, transactions).Scan(&last); err != nil {
		return err
	}
	t.add("connections", figures.Count, float64(connections))
	t.add("locks per connection", figures.Count, float64(n)/float64(max(connections, 1)))
	t.add("transactions", figures.PerSecond, float64(last-first)/d.Seconds())
	return nil
}
