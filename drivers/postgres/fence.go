package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
)

// The sequence of the fencing tokens. All keys of a database share it: tokens rise for each
// key, with gaps. Its schema does not depend on a role's search path, because two sequences
// would give tokens out of order.
const (
	fenceName    = "dlock_fence"
	publicSchema = "public"
)

var plainName = regexp.MustCompile(`^[A-Za-z0-9_]{1,63}$`)

// sequence is the name of the sequence as SQL reads it.
func (b *Backend) sequence() string { return `"` + b.opt.FenceSchema + `".` + fenceName }

// SetupSQL returns the one statement that an administrator runs for a role that may not create
// the sequence of the fencing tokens: it makes the sequence, and grants the role the rights on
// it that the driver needs. An empty role means the role in the URL. SetupSQL asks no server.
func (b *Backend) SetupSQL(role string) string {
	role = `"` + strings.ReplaceAll(cmp.Or(role, b.role), `"`, `""`) + `"`
	schema := ""
	if b.opt.FenceSchema != publicSchema {
		schema = fmt.Sprintf(`CREATE SCHEMA IF NOT EXISTS "%s"; GRANT USAGE ON SCHEMA "%[1]s" TO %s; `, b.opt.FenceSchema, role)
	}
	return fmt.Sprintf("DO $$BEGIN %s%s GRANT USAGE, UPDATE ON SEQUENCE %s TO %s; END$$", schema, b.makeFence(), b.sequence(), role)
}

// makeFence returns the statement of plpgsql that makes the sequence if it is not there. Its tokens begin at the
// clock, since sessions that go on may have given tokens of one that was dropped.
func (b *Backend) makeFence() string {
	return "EXECUTE 'CREATE SEQUENCE IF NOT EXISTS " + b.sequence() + " AS int8 START ' || " + microseconds("clock_timestamp()") + ";"
}

// mostTokens bounds the tokens of a lease, each of which costs the server a quarter of a microsecond.
const mostTokens = 256

// microseconds converts a time to SQL's int8.
func microseconds(t string) string { return "(extract(epoch FROM " + t + ") * 1000000)::int8" }

// fenceLag is how far, in microseconds, the sequence may be behind the clock. It also leaves
// room for tokens that others draw while the sequence is raised: they never draw ten million in
// that time, so raising never sets the sequence back.
const fenceLag = 10_000_000

// fenceBounds returns the least allowed value of the sequence, and the value to which a smaller
// one is raised.
//
// A standby that is promoted may lack the last tokens that its primary gave. These tokens are
// below its clock, or not far above the time of the last transaction that it received. Only if
// the sequence was ahead of the clock are they larger; then this process knows the highest
// token that it was given. After the promotion every process finds the sequence either below
// the time of that transaction plus fenceLag, or raised already. So it is raised once, and
// never while tokens are drawn. For a server that was restored from a copy the same holds with
// the time of its start.
func (b *Backend) fenceBounds() (least, target string) {
	began := fmt.Sprintf("%s, coalesce(%s + %d, 0)", microseconds("pg_postmaster_start_time()"), microseconds("pg_last_xact_replay_timestamp()"), fenceLag)
	clock, seen := microseconds("clock_timestamp()"), b.highest.Load()
	least = fmt.Sprintf("greatest(%s - %d, %s, %d)", clock, fenceLag, began, seen)
	target = fmt.Sprintf("greatest(%s, %s, %d)", clock, began, seen+fenceLag)
	return least, target
}

// fenceColumns returns the columns of the first query about the sequence (s is the sequence, c
// its class): see fenceState.
func (b *Backend) fenceColumns() string {
	least, _ := b.fenceBounds()
	return `c.relkind, c.relpersistence,
		s.seqcache = 1 AND NOT s.seqcycle AND s.seqincrement >= 1 AND s.seqmax >= ` + strconv.FormatUint(driver.MaxFence, 10) + `,
		CASE WHEN c.relkind = 'S' THEN (has_sequence_privilege(c.oid, 'UPDATE') AND has_sequence_privilege(c.oid, 'USAGE, SELECT'))::int ELSE 0 END,
		current_user,
		(SELECT string_agg(quote_ident(n.nspname) || '.' || relname, ', ') FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace
			WHERE relname = '` + fenceName + `' AND relkind = 'S' AND relpersistence <> 't' AND nspname <> ` + literal(b.opt.FenceSchema) + `),
		CASE WHEN c.relkind = 'S' AND NOT pg_is_in_recovery() AND has_sequence_privilege(c.oid, 'USAGE, SELECT') THEN
			CASE WHEN pg_sequence_last_value(c.oid::regclass) >= ` + strconv.FormatUint(driver.MaxFence, 10) + ` THEN 2
			ELSE (coalesce(pg_sequence_last_value(c.oid::regclass), 0) < ` + least + `)::int END ELSE 0 END`
}

// fenceTables returns the tables of these columns: one row, with nulls if there is no sequence.
func (b *Backend) fenceTables() string {
	return ` LEFT JOIN (pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = ` + literal(b.opt.FenceSchema) + `
		LEFT JOIN pg_sequence AS s ON s.seqrelid = c.oid) ON c.relname = '` + fenceName + `'`
}

// fenceState is the answer to the first query about the sequence.
type fenceState struct {
	exists, sequence, logged, rises, mayUse bool
	role                                    string
	others                                  string // sequences of the same name in other schemas
	behind                                  bool   // it must be raised
	ended                                   bool   // it has given the largest token
}

func readFence(row [][]byte) fenceState {
	return fenceState{
		exists: row[0] != nil, sequence: string(row[0]) == "S", logged: string(row[1]) == "p", rises: value(row[2]) == 1, mayUse: value(row[3]) == 1,
		role: string(row[4]), others: string(row[5]), behind: value(row[6]) == 1, ended: value(row[6]) == 2,
	}
}

// missing reports whether no schema has a sequence.
func (f *fenceState) missing() bool { return !f.exists && f.others == "" }

// raiseFence raises a sequence that is too low.
func (b *Backend) raiseFence(ctx context.Context, pc *pgconn.PgConn) error {
	// The advisory lock, of two numbers, prevents two sessions from raising at once.
	least, target := b.fenceBounds()
	seq := literal(b.sequence()) + "::regclass"
	return exec(ctx, pc, fmt.Sprintf(`SELECT pg_advisory_xact_lock(%d, %[2]s::oid::int4);
		SELECT setval(%[2]s, %[4]s) WHERE coalesce(pg_sequence_last_value(%[2]s), 0) < %[3]s`, ourLocks, seq, least, target))
}

// noToken refuses a lock whose token would be over the largest token.
func (b *Backend) noToken() error {
	return fix(fmt.Sprintf("the sequence %s has given the largest token, %d: delete such tokens from the stores that remember them, and set the sequence back", b.sequence(), uint64(driver.MaxFence)),
		fmt.Sprintf("SELECT setval(%s, %s)", literal(b.sequence()), microseconds("clock_timestamp()")))
}

// ourLocks is the first number of the driver's own advisory locks of two numbers.
const ourLocks = 0x646c6f63

func (b *Backend) createFence(ctx context.Context, pc *pgconn.PgConn, f fenceState) error {
	// Under a lock, so that two processes do not make sequences in two schemas.
	err := exec(ctx, pc, fmt.Sprintf(`SELECT pg_advisory_xact_lock(%d, 0);
		DO $$BEGIN IF NOT EXISTS (SELECT FROM pg_class WHERE relname = '%s' AND relkind = 'S' AND relpersistence <> 't') THEN
		%s END IF; END$$`, ourLocks, fenceName, b.makeFence()))
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code {
	case codePermission:
		return fix("there is no sequence "+b.sequence()+" for the fencing tokens, and the role may not create it", b.SetupSQL(f.role))
	case codeNoSchema:
		return fix("there is no schema "+b.opt.FenceSchema+" for the sequence of the fencing tokens (fence_schema names another)", b.SetupSQL(f.role))
	}
	return err
}

// checkFence refuses a sequence whose numbers would not rise: with a cache every session draws
// from its own block of numbers: one session gives 1, another 21, the first then 2.
func (b *Backend) checkFence(f fenceState) error {
	seq := b.sequence()
	switch {
	case f.others != "":
		return &driver.RefusedError{Reason: fmt.Sprintf("postgres: tokens come from %s.%s, and there is a second sequence of them: %s; set fence_schema to the one in use everywhere, and drop the other", b.opt.FenceSchema, fenceName, f.others)}
	case !f.exists:
		return &driver.RefusedError{Reason: "postgres: the sequence " + seq + " was dropped during the setup"}
	case !f.sequence:
		return &driver.RefusedError{Reason: "postgres: " + seq + " is not a sequence"}
	case !f.logged:
		return fix("the sequence "+seq+" is unlogged: after a crash it would give the same tokens again", "ALTER SEQUENCE "+seq+" SET LOGGED")
	case !f.rises:
		return fix("the numbers of the sequence "+seq+" do not rise from session to session, or end too soon", "ALTER SEQUENCE "+seq+" AS int8 INCREMENT 1 NO MAXVALUE CACHE 1 NO CYCLE")
	case f.ended:
		return b.noToken()
	case !f.mayUse:
		return fix("the role may not use the sequence "+seq, b.SetupSQL(f.role))
	}
	return nil
}
