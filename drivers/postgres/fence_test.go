package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// run executes statements as an administrator.
func run(t testing.TB, db *pgx.Conn, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := db.Exec(context.Background(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// Two roles that see different schemas first exclude each other, and so they must draw
// their tokens from one sequence.
func TestTokensDoNotDependOnTheSearchPath(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	s.role(t, "a", "")
	s.role(t, "b", "")
	run(t, db, "CREATE SCHEMA a AUTHORIZATION a", "CREATE SCHEMA b AUTHORIZATION b",
		"GRANT CREATE ON SCHEMA public TO a", "ALTER DEFAULT PRIVILEGES FOR ROLE a GRANT USAGE, UPDATE ON SEQUENCES TO b")
	last := uint64(0)
	for i := range 6 {
		b := opener(t, s.URLFor([]string{"a", "b"}[i%2], ""))
		l := must(t, b, request("k", time.Minute))
		if f := l.Grant().Fence; f <= last || last != 0 && f > last+100 {
			t.Errorf("token %d after %d", f, last)
		}
		last = l.Grant().Fence
		if i == 0 { // the others' sessions do not raise the sequence to the clock
			run(t, db, fmt.Sprintf("SELECT setval('public.dlock_fence', %d)", time.Now().Add(time.Hour).UnixMicro()))
			last = 0
		}
		if err := release(l); err != nil {
			t.Fatal(err)
		}
	}
}

func TestASecondSequenceIsRefusedByName(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	run(t, db, "CREATE SCHEMA app")
	_ = must(t, opener(t, s.URL()), request("k", time.Minute)).Release(context.Background())
	refused(t, opener(t, s.URL()+"&fencing=app.dlock_fence"), "public.dlock_fence", "app.dlock_fence")
	if n := count(t, db, "SELECT count(*) FROM pg_class WHERE relname = 'dlock_fence'"); n != 1 {
		t.Errorf("%d sequences", n)
	}
	run(t, db, "CREATE SEQUENCE app.dlock_fence")
	refused(t, opener(t, s.URL()), "public.dlock_fence", "app.dlock_fence")
	run(t, db, "DROP SEQUENCE public.dlock_fence")
	_ = must(t, opener(t, s.URL()+"&fencing=app.dlock_fence"), request("k", time.Minute)).Release(context.Background())
}

func TestAnUnloggedSequenceIsRefused(t *testing.T) {
	t.Parallel()
	s := database(t)
	if admin(t, s.URL()).PgConn().ParameterStatus("server_version") < "15" {
		t.Skip("this server has no unlogged sequences")
	}
	run(t, admin(t, s.URL()), "CREATE UNLOGGED SEQUENCE dlock_fence")
	refused(t, opener(t, s.URL()), "ALTER SEQUENCE", "SET LOGGED")
}

// A promotion may lose the last tokens. The new primary's tokens are larger nevertheless, even
// if the old primary gave the last ones a moment before its end, and had just raised the
// sequence to the clock.
func TestAPromotedStandbyRepeatsNoToken(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{0, time.Hour}[:rounds(2, 1)] {
		primary := server.Postgres(t)
		standby := server.Postgres(t, server.WithReplicaOf(primary))
		url := severalHosts(primary, standby)
		db := admin(t, primary.URL())
		b := opener(t, url)
		l := must(t, b, request("k", time.Minute))
		if ahead > 0 { // of the clock, which then says nothing
			run(t, db, fmt.Sprintf("SELECT setval('public.dlock_fence', %d)", time.Now().Add(ahead).UnixMicro()))
		}
		if err := release(l); err != nil {
			t.Fatal(err)
		}
		lsn := ""
		if err := db.QueryRow(context.Background(), "SELECT pg_current_wal_flush_lsn()::text").Scan(&lsn); err != nil {
			t.Fatal(err)
		}
		_, _, err := answer(context.Background(), opener(t, standby.URL()), request("k", time.Minute))
		if no := (*driver.RefusedError)(nil); !errors.As(err, &no) || no.RetryAfter == 0 || !strings.Contains(err.Error(), "primary") {
			t.Errorf("a standby, which may be promoted, gives %v", err)
		}
		replica := admin(t, standby.URL())
		eventually(t, "the standby has it all", func() bool {
			return count(t, replica, "SELECT (pg_last_wal_replay_lsn() >= $1::text::pg_lsn)::int", lsn) == 1
		})
		// Commits from now on are lost.
		run(t, replica, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
		eventually(t, "the standby follows no more", func() bool { return count(t, replica, "SELECT count(*) FROM pg_stat_wal_receiver") == 0 })
		highest := uint64(0)
		for range 500 { // quickly, so that the sequence is only a little behind the clock
			l := must(t, b, request("k", time.Minute))
			highest = max(highest, l.Grant().Fence)
			if err := release(l); err != nil {
				t.Fatal(err)
			}
		}
		if err := primary.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = replica.Close(context.Background())
		if err := standby.Promote(); err != nil {
			t.Fatal(err)
		}
		waiting := request("k", time.Minute)
		var after driver.Lease
		promoted := time.Now()
		eventually(t, "the promoted server grants", func() bool {
			var err error
			after, err = b.Acquire(context.Background(), waiting)
			var no *driver.RefusedError
			if errors.As(err, &no) && no.RetryAfter == 0 {
				t.Fatalf("a promoted server refuses permanently: %v", err)
			}
			return err == nil
		})
		if f := after.Grant().Fence; f <= highest {
			t.Errorf("ahead by %v: token %d after %d", ahead, f, highest)
		}
		_ = after.Release(context.Background())
		if ahead > 0 {
			continue
		}
		// Another process, which has seen no token of the old primary's. Within ten seconds it does
		// not raise the sequence to the clock.
		l = must(t, opener(t, url), request("k", time.Minute))
		if f := l.Grant().Fence; f <= highest || f > after.Grant().Fence+100 && time.Since(promoted) < 10*time.Second {
			t.Errorf("another process: token %d after %d and %d", f, highest, after.Grant().Fence)
		}
		_ = l.Release(context.Background())
	}
}

// severalHosts is a URL of several servers, as for a failover.
func severalHosts(first *server.Server, more ...*server.Server) string {
	hosts := []string{first.Addr()}
	for _, s := range more {
		hosts = append(hosts, s.Addr())
	}
	slices.Reverse(hosts) // standbys first
	return strings.Replace(first.URL(), first.Addr(), strings.Join(hosts, ","), 1)
}

// Waiters carry on over a promotion, one at a time holds the key on each server, and the
// tokens rise.
func TestAPromotionUnderLoad(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: it starts pairs of servers")
	}
	primary := server.Postgres(t)
	promoteUnderLoad(t, primary, server.Postgres(t, server.WithReplicaOf(primary)))
}

func promoteUnderLoad(t *testing.T, primary, standby *server.Server) {
	const workers = 8
	b := opener(t, severalHosts(primary, standby))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var mu sync.Mutex
	var tokens []uint64 // in the order of the grants
	var times []time.Time
	grants := func() int { mu.Lock(); defer mu.Unlock(); return len(tokens) }
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				r := request("k", 10*time.Second)
				r.Wait = true
				l, err := b.Acquire(ctx, r)
				var no *driver.RefusedError
				switch {
				case err == nil:
				case errors.As(err, &no) && no.RetryAfter == 0, ctx.Err() != nil:
					t.Errorf("a wait did not survive: %v", err)
					return
				default:
					<-time.After(10 * time.Millisecond)
					continue
				}
				mu.Lock()
				tokens, times = append(tokens, l.Grant().Fence), append(times, time.Now())
				mu.Unlock()
				_ = l.Release(ctx)
			}
		})
	}
	eventually(t, "load", func() bool { return grants() > 200 })
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	killed, before := time.Now(), grants()
	if err := standby.Promote(); err != nil {
		t.Fatal(err)
	}
	promoted := time.Now()
	eventually(t, "load on the new primary", func() bool { return grants() > before+200 })
	close(stop)
	wg.Wait()
	for i := range tokens {
		if i > 0 && tokens[i] <= tokens[i-1] {
			t.Fatalf("token %d after %d, grant %d of %d (%d before the kill)", tokens[i], tokens[i-1], i, len(tokens), before)
		}
	}
	t.Logf("%d grants before; promoted %v after the kill; the first grant %v after the kill", before, promoted.Sub(killed).Round(time.Millisecond), times[before].Sub(killed).Round(time.Millisecond))
}
