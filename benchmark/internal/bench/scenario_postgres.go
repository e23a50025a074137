package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// postgres measures the locks of PostgreSQL beside a connection for each lock.
func postgres(ctx context.Context, r *Runner) ([]*Section, error) {
	servers, ok, err := r.servers(ctx, server.KindPostgres, 1)
	if err != nil || !ok {
		return nil, err
	}
	setup := direct(servers, r.plan.TTL)
	latency, err := r.postgresLatency(ctx, setup)
	if err != nil {
		return nil, err
	}
	rate, err := r.postgresRate(ctx, setup)
	if err != nil {
		return nil, err
	}
	waiting := handoffSection(1, r.plan.Hold)
	waiting.Title = "PostgreSQL: handing over"
	for _, w := range r.plan.Waiters {
		if w > maxPostgresClients {
			continue
		}
		if err := r.handoffCase(ctx, waiting, plural(w, "client"), w, setup, nil, r.serving(server.KindPostgres, 1, waits)); err != nil {
			return nil, err
		}
	}
	many, err := r.postgresHeld(ctx, setup)
	return []*Section{latency, rate, waiting, many}, err
}

// maxPostgresClients stays under the server's max_connections (see Runner.servers) with
// several connections for each client of each contestant.
const maxPostgresClients = 32

func (r *Runner) postgresLatency(ctx context.Context, setup *Setup) (*Section, error) {
	s := &Section{
		Title: "PostgreSQL: latency",
		Text:  "One goroutine, on loopback. The limit has a connection that nobody else uses.",
		Key:   pair + " p50",
		Plots: []Plot{{Title: "acquire+release, median", Metric: pair + " p50"}},
	}
	c := &testCase{name: "postgres", clients: 1, rounds: r.plan.Rounds, setup: setup, turn: r.latencyTurn()}
	return s, r.compare(ctx, s, c, r.serving(server.KindPostgres, 1, nil))
}

func (r *Runner) postgresRate(ctx context.Context, setup *Setup) (*Section, error) {
	s := &Section{
		Title: "PostgreSQL: throughput",
		Text:  "Goroutines of one process share one client and take locks on keys of their own.",
		Key:   "locks", More: true, Axis: "goroutines",
		Plots: []Plot{{Title: "locks per second", Metric: "locks", Lines: true}},
	}
	for _, g := range r.plan.Goroutines {
		c := &testCase{
			name: plural(g, "goroutine"), x: float64(g), clients: 1, rounds: r.plan.Rounds,
			setup: setup, turn: r.throughputTurn(g, nil),
		}
		if err := r.compare(ctx, s, c, r.serving(server.KindPostgres, 1, nil)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// postgresHeld counts the connections and statements of many leases.
func (r *Runner) postgresHeld(ctx context.Context, setup *Setup) (*Section, error) {
	s := &Section{
		Title: "PostgreSQL: held leases",
		Text: fmt.Sprintf("One client takes that many locks with a TTL of %v, 64 at a time, and holds them for %v while they renew themselves. Connections are what the server counts; "+
			"transactions are the server's own count while nothing else is done: what the heartbeats cost it. It counts with a delay of up to a second.", r.plan.HeldTTL, r.plan.Watched),
		Key: "locks per connection", More: true,
	}
	mine := func(c Contestant) bool { return c.Kind == Ours }
	setup = &Setup{Nodes: setup.Nodes, TTL: r.plan.HeldTTL}
	for _, n := range r.plan.Held {
		if n > maxPostgresLocks {
			continue
		}
		c := &testCase{name: plural(n, "lease"), x: float64(n), setup: setup, turn: r.postgresHeldTurn(n)}
		if err := r.compareOnce(ctx, s, c, r.serving(server.KindPostgres, 1, mine)); err != nil {
			return s, err
		}
	}
	return s, nil
}

// maxPostgresLocks is how many fit a server's lock table by default.
const maxPostgresLocks = 10_000

// postgresHeldTurn is heldTurn, seen from the server too.
func (r *Runner) postgresHeldTurn(n int) func(context.Context, *entry) *turn {
	return func(ctx context.Context, e *entry) *turn {
		failed := func(err error) *turn { return &turn{err: err} }
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
		return r.heldTurn(n, func(ctx context.Context, t *turn, l Locker) error {
			return watchPostgres(ctx, t, l, admin, n, others, r.plan.Watched)
		})(ctx, e)
	}
}

// watchPostgres counts while leases are held. others are connections of before.
func watchPostgres(ctx context.Context, t *turn, l Locker, admin *pgx.Conn, n int, others []int32, d time.Duration) error {
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
	t.add("connections", Count, float64(connections))
	t.add("locks per connection", Count, float64(n)/float64(max(connections, 1)))
	t.add("transactions", PerSecond, float64(last-first)/d.Seconds())
	return nil
}
