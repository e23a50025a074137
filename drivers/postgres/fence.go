package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
)

// defaultFence is the sequence of the fencing tokens. All keys of a database share
// it: tokens rise for each key, with gaps.
const defaultFence = "dlock_fence"

// fenceName checks what the user calls the sequence and quotes it; empty: no tokens.
func fenceName(s string) (string, error) {
	switch s {
	case "", "on":
		s = defaultFence
	case "off":
		return "", nil
	}
	parts := strings.Split(s, ".")
	if len(parts) > 2 {
		return "", driver.Invalid("fencing", "must be on, off, or a sequence such as dlock_fence or my_schema.dlock_fence")
	}
	for _, p := range parts {
		if !plain(p) {
			return "", driver.Invalid("fencing", "must be on, off, or a sequence such as dlock_fence or my_schema.dlock_fence, in letters, digits and underscores")
		}
	}
	return `"` + strings.Join(parts, `"."`) + `"`, nil
}

func plain(s string) bool {
	if s == "" || len(s) > 63 {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// fenceLag is how far, in microseconds, the sequence may be behind the clock. It is
// also the room in which others may draw tokens while it is raised: no one draws ten
// million of them meanwhile, and so the sequence never goes back.
const fenceLag = 10_000_000

// ensureFence checks that the sequence gives rising tokens, makes it if it is not
// there, and raises it where it lags the clock, so that tokens are comparable with
// those of other backends.
func ensureFence(ctx context.Context, pc *pgconn.PgConn, fence string) error {
	row, err := lookUpFence(ctx, pc, fence)
	if err != nil {
		return err
	}
	if row == nil {
		if err := createFence(ctx, pc, fence); err != nil {
			return err
		}
		if row, err = lookUpFence(ctx, pc, fence); err != nil {
			return err
		}
	}
	if row == nil {
		return &driver.RefusedError{Reason: "postgres: the sequence " + fence + " was made, and is not in the search path"}
	}
	if err := checkFence(row, fence); err != nil {
		return err
	}
	return raiseFence(ctx, pc, fence)
}

// lookUpFence returns: is it a sequence, its cache, does it cycle, its increment, its type's
// size, may it be used, may it be set; the role.
func lookUpFence(ctx context.Context, pc *pgconn.PgConn, fence string) ([][]byte, error) {
	return query(ctx, pc, `SELECT (c.relkind = 'S')::int, s.seqcache, s.seqcycle::int, s.seqincrement, s.seqmax,
		CASE WHEN c.relkind = 'S' THEN has_sequence_privilege(c.oid, 'USAGE')::int ELSE 0 END,
		CASE WHEN c.relkind = 'S' THEN has_sequence_privilege(c.oid, 'UPDATE')::int ELSE 0 END,
		quote_ident(current_user)
		FROM pg_class AS c LEFT JOIN pg_sequence AS s ON s.seqrelid = c.oid
		WHERE c.oid = to_regclass(`+literal(fence)+`)`)
}

func createFence(ctx context.Context, pc *pgconn.PgConn, fence string) error {
	err := exec(ctx, pc, "CREATE SEQUENCE IF NOT EXISTS "+fence+" AS int8 CACHE 1 NO CYCLE")
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code {
	case codeExists, codeDuplicate: // somebody was faster
		return nil
	case codePermission:
		row, err := query(ctx, pc, "SELECT quote_ident(current_user), quote_ident(coalesce(current_schema(), 'public'))")
		if err != nil {
			return err
		}
		schema := string(row[1])
		if s, _, ok := strings.Cut(fence, `"."`); ok {
			schema = s + `"`
		}
		return fix("there is no sequence "+fence+" for the fencing tokens, and the role may not create it (or turn the tokens off: fencing=off)",
			fmt.Sprintf("GRANT USAGE, CREATE ON SCHEMA %s TO %s", schema, row[0]))
	}
	return err
}

// checkFence refuses a sequence whose numbers would not rise: with a cache every session
// has numbers in stock, and one gives 1, the next 21, the first then 2.
func checkFence(row [][]byte, fence string) error {
	switch {
	case number(row[0]) != 1:
		return &driver.RefusedError{Reason: "postgres: " + fence + " is no sequence (parameter fencing)"}
	case number(row[1]) != 1 || number(row[2]) != 0 || number(row[3]) < 1:
		return fix("the numbers of the sequence "+fence+" do not rise from session to session", "ALTER SEQUENCE "+fence+" INCREMENT 1 CACHE 1 NO CYCLE")
	case number(row[4]) < driver.MaxFence:
		return fix("the sequence "+fence+" is too small for the time in microseconds", "ALTER SEQUENCE "+fence+" AS int8 NO MAXVALUE")
	case number(row[5]) != 1 || number(row[6]) != 1:
		return fix("the role may not use the sequence "+fence, fmt.Sprintf("GRANT USAGE, SELECT, UPDATE ON SEQUENCE %s TO %s", fence, row[7]))
	}
	return nil
}

// raiseFence sets the sequence to the clock where it lags. The advisory lock, of two
// numbers and so in a space of its own, keeps two from raising at once.
func raiseFence(ctx context.Context, pc *pgconn.PgConn, fence string) error {
	seq := literal(fence) + "::regclass"
	const lags = `coalesce(pg_sequence_last_value(%[1]s), 0) < (extract(epoch FROM clock_timestamp()) * 1000000)::int8 - %[2]d`
	row, err := query(ctx, pc, fmt.Sprintf("SELECT ("+lags+")::int", seq, fenceLag))
	if err != nil || number(row[0]) == 0 {
		return err
	}
	return exec(ctx, pc, fmt.Sprintf(`BEGIN; SELECT pg_advisory_xact_lock(%[3]d, %[1]s::oid::int4);
		SELECT setval(%[1]s, (extract(epoch FROM clock_timestamp()) * 1000000)::int8) WHERE `+lags+`; COMMIT`,
		seq, fenceLag, 0x646c6f63))
}
