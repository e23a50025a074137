package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// token takes and releases a free key, and returns its token.
func token(t *testing.T, b driver.Backend) uint64 {
	t.Helper()
	l := must(t, b, request("k", time.Minute))
	drivertest.Release(t, l)
	return l.Grant().Fence
}

// setSequence sets the sequence to a value.
func setSequence(t *testing.T, url string, value int64) {
	t.Helper()
	once(t, url, fmt.Sprintf("SELECT setval('public.dlock_fence', %d)", value))
}

// A sequence whose tokens would not rise, for all sessions and over a crash, is refused, and running
// the statement in the error is enough.
func TestAnUnfitSequenceIsRefusedWithTheStatementThatMendsIt(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	for kind, says := range map[string]string{
		"SEQUENCE dlock_fence CACHE 20": "CACHE 1", "SEQUENCE dlock_fence MAXVALUE 1000000": "NO MAXVALUE", "UNLOGGED SEQUENCE dlock_fence": "SET LOGGED",
	} {
		if says == "SET LOGGED" && db.PgConn().ParameterStatus("server_version") < "15" {
			continue // it has no unlogged sequences
		}
		run(t, db, "CREATE "+kind)
		b := opener(t, s.URL())
		run(t, db, statement(t, b, "ALTER SEQUENCE", says))
		token(t, b)
		run(t, db, "DROP SEQUENCE dlock_fence")
	}
}

// statement returns the statement in the error of a backend that grants nothing.
func statement(t *testing.T, b driver.Backend, says ...string) string {
	t.Helper()
	_, err := drivertest.Acquire(t, b, request("k", time.Minute))
	drivertest.WantRefused(t, "Acquire", err, says...)
	_, sql, ok := strings.Cut(fmt.Sprint(err), "must run: ")
	if !ok {
		t.Fatalf("no statement in: %v", err)
	}
	return sql
}

func TestARoleWithoutRightsGetsTheStatementToRun(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	s.role(t, "some body", "")
	url := s.URLFor("some body", "")
	for range 2 { // the second time another role owns the sequence
		run(t, db, statement(t, opener(t, url)))
		token(t, opener(t, url))
		run(t, db, "DROP SEQUENCE dlock_fence", "REVOKE CREATE ON SCHEMA public FROM \"some body\"", "CREATE SEQUENCE dlock_fence")
	}
	run(t, db, "DROP SEQUENCE dlock_fence")
	app := url + "&fence_schema=app" // which is missing, too
	run(t, db, statement(t, opener(t, app)))
	live := opener(t, app)
	last := token(t, live)
	run(t, db, "DROP SEQUENCE app.dlock_fence")
	run(t, db, statement(t, opener(t, app)))
	if next := token(t, live); next <= last { // no session has begun since, which would raise it
		t.Errorf("a session gives the token %d after %d", next, last)
	}
}

func TestASecondSequenceIsRefusedByName(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	run(t, db, "CREATE SCHEMA app")
	token(t, opener(t, s.URL()))
	refused(t, opener(t, s.URL()+"&fence_schema=app"), "public.dlock_fence", "app.dlock_fence")
	if n := count(t, db, "SELECT count(*) FROM pg_class WHERE relname = 'dlock_fence'"); n != 1 {
		t.Errorf("%d sequences", n)
	}
	run(t, db, "CREATE SEQUENCE app.dlock_fence")
	refused(t, opener(t, s.URL()), "public.dlock_fence", "app.dlock_fence")
	open := opener(t, s.URL()+"&fence_schema=app")
	run(t, db, "DROP SEQUENCE public.dlock_fence")
	token(t, open)
	run(t, db, "DROP SEQUENCE app.dlock_fence")
	_, err := drivertest.Acquire(t, open, request("k", time.Minute))
	if no := (*driver.RefusedError)(nil); !errors.As(err, &no) || no.RetryAfter == 0 || !strings.Contains(no.Reason, "dropped") {
		t.Errorf("without its sequence: %v", err)
	}
	token(t, opener(t, s.URL()+"&fence_schema=app"))
	token(t, open)
}

// Other causes may lie behind a refusal, and the server's clock may be wrong.
func TestCheckGoesOnAfterARefusal(t *testing.T) {
	t.Parallel()
	s := database(t) // of a server without fsync
	const clock = "CREATE OR REPLACE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE "
	once(t, s.URL(), "CREATE SEQUENCE dlock_fence CACHE 20", clock+"sql AS 'SELECT now() + interval ''1 hour'''")
	t.Cleanup(func() { once(t, s.URL(), clock+"internal STRICT PARALLEL SAFE AS 'clock_timestamp'") })
	b := opener(t, s.URL())
	refused := drivertest.AwaitFinding(t, b, "refused")
	all, err := b.Check(t.Context())
	found := map[string]string{}
	for _, d := range all {
		found[d.Code] = d.Measured
	}
	off, bad := time.ParseDuration(found["clock-offset"])
	if err != nil || len(all) != 3 || !slices.Contains(all, refused) || found["fsync"] != "off" || bad != nil || (off-time.Hour).Abs() > time.Minute {
		t.Errorf("Check: %+v, %v", all, err)
	}
	once(t, s.URL(), "ALTER SEQUENCE public.dlock_fence CACHE 1")
	drivertest.AwaitMended(t, b, "refused")
}

func TestTheSequenceIsRaisedToTheClockAndNeverSetBack(t *testing.T) {
	t.Parallel()
	s := database(t)
	if f, now := token(t, opener(t, s.URL())), uint64(time.Now().Add(-time.Minute).UnixMicro()); f < now {
		t.Errorf("the first token is %d, less than %d", f, now)
	}
	ahead := time.Now().Add(time.Hour).UnixMicro()
	setSequence(t, s.URL(), ahead)
	if f := token(t, opener(t, s.URL())); f != uint64(ahead)+1 {
		t.Errorf("token %d after %d: the sequence was set back", f, ahead)
	}
}

// A store of package fence refuses a larger token, and JSON and Lua round it.
func TestNoTokenIsLargerThanTheLargest(t *testing.T) {
	t.Parallel()
	s := database(t)
	b := opener(t, s.URL())
	token(t, b)
	setSequence(t, s.URL(), driver.MaxFence-1)
	if f := token(t, b); f != driver.MaxFence {
		t.Errorf("token %d, want %d", f, uint64(driver.MaxFence))
	}
	refused(t, b, "sequence", "setval")
	refused(t, opener(t, s.URL()), "sequence", "setval")
	_, err := drivertest.Acquire(t, b, waiting("k", time.Minute))
	drivertest.WantRefused(t, "Acquire", err)
	nothingLeft(t, s)
	if d := drivertest.AwaitFinding(t, b, "refused"); !strings.Contains(d.Command, "setval") {
		t.Errorf("Check: %+v", d)
	}
}

// Polling for a held lock uses up no tokens, of which the server writes every thirty-second to
// its disk.
func TestARefusedAttemptDrawsNoToken(t *testing.T) {
	t.Parallel()
	s := database(t)
	a, b := opener(t, s.URL()), opener(t, s.URL())
	token(t, b)
	l := must(t, a, request("k", time.Hour))
	ahead := time.Now().Add(time.Hour).UnixMicro() // no new session raises it
	setSequence(t, s.URL(), ahead)
	ranged := waiting("k", time.Minute)
	ranged.Tokens = 1000
	attempt := *ranged
	attempt.Wait = false
	for range 25 {
		isHeld(t, b, "k")
		if _, err := drivertest.Acquire(t, b, &attempt); !errors.Is(err, driver.ErrHeld) {
			t.Errorf("a range of a held key: %v", err)
		}
	}
	next := make(chan driver.Lease)
	go func() { next <- must(t, b, ranged) }()
	drivertest.AwaitWaiters(t, b, "k", 1)
	drawn := func() int64 { return count(t, admin(t, s.URL()), "SELECT last_value FROM dlock_fence") - ahead }
	if n := drawn(); n > 0 {
		t.Errorf("50 refused attempts and a wait drew %d tokens", n)
	}
	drivertest.Release(t, l)
	l = <-next
	if g := l.Grant(); g.Tokens != 256 || int64(g.Fence) != ahead+256 || drawn() != 256 {
		t.Errorf("the range of a waiter has %d tokens and ends with %d after %d, and %d were drawn", g.Tokens, g.Fence, ahead, drawn())
	}
	drivertest.Release(t, l)
}

// A promotion may lose the last tokens. The new primary's tokens are larger nevertheless, even
// if the old primary gave the last ones a moment before its end, and had just raised the
// sequence to the clock. A wait survives the promotion.
func TestAPromotedStandbyRepeatsNoToken(t *testing.T) {
	if testing.Short() {
		t.Skip("short: servers of its own")
	}
	t.Parallel()
	for _, ahead := range []time.Duration{0, time.Hour} { // of the clock, which then says nothing
		t.Run(ahead.String(), func(t *testing.T) { t.Parallel(); promote(t, ahead) })
	}
}

func promote(t *testing.T, ahead time.Duration) {
	primary := server.Postgres(t)
	standby := server.Postgres(t, server.WithReplicaOf(primary))
	url := strings.Replace(primary.URL(), primary.Addr(), standby.Addr()+","+primary.Addr(), 1)
	db := admin(t, primary.URL())
	b := opener(t, url)
	token(t, b)
	if ahead > 0 {
		setSequence(t, primary.URL(), time.Now().Add(ahead).UnixMicro())
	}
	lsn := ""
	if err := db.QueryRow(context.Background(), "SELECT pg_current_wal_flush_lsn()::text").Scan(&lsn); err != nil {
		t.Fatal(err)
	}
	_, err := drivertest.Acquire(t, opener(t, standby.URL()), request("k", time.Minute))
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
	for range 300 { // quickly, so that the sequence is only a little behind the clock
		highest = max(highest, token(t, b))
	}
	held := must(t, opener(t, url), request("k", time.Minute))
	highest = max(highest, held.Grant().Fence)
	next := make(chan driver.Lease)
	go func() { next <- must(t, b, waiting("k", time.Minute)) }()
	drivertest.AwaitWaiters(t, b, "k", 1)
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = replica.Close(context.Background())
	if err := standby.Promote(); err != nil {
		t.Fatal(err)
	}
	promoted := time.Now()
	l := <-next
	drivertest.Release(t, l)
	after := l.Grant().Fence
	if after <= highest {
		t.Errorf("ahead by %v: token %d after %d", ahead, after, highest)
	}
	if ahead > 0 {
		return
	}
	// Another process, which has seen no token of the old primary's. Within ten seconds it does
	// not raise the sequence to the clock.
	if f := token(t, opener(t, url)); f <= highest || f > after+100 && time.Since(promoted) < 10*time.Second {
		t.Errorf("another process: token %d after %d and %d", f, highest, after)
	}
}
