package postgres

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
)

// The server's error codes that the driver itself looks for.
const (
	codeLockTimeout = "55P03"
	codePermission  = "42501"
	codeNoSchema    = "3F000"
)

// refusals are the errors that say that a request had no effect, with the pause before another one;
// zero: another one cannot succeed.
var refusals = map[string]struct {
	after  time.Duration
	reason string
}{
	"53200":        {time.Second, "the server's lock table is full: raise max_locks_per_transaction"},
	"53300":        {time.Second, "the server has too many connections: every process needs up to max_conns of them; raise max_connections or lower this"},
	"57P03":        {500 * time.Millisecond, "the server is starting or shutting down"},
	"40P01":        {100 * time.Millisecond, "the server found a deadlock and ended it by failing this request"},
	codePermission: {0, "the role lacks a permission"},
	"28P01":        {0, "the server refuses the role's login: check the password and pg_hba.conf"},
	"28000":        {0, "the server refuses the role's login: check the password and pg_hba.conf"},
	"3D000":        {0, "there is no such database"},
	"25006":        {standbyRetry, "the server is read-only: connect to the primary"},
	"42P01":        {time.Second, "the sequence of the fencing tokens was dropped: the next process that starts makes it, if its role may"},
	"2200H":        {0, "the sequence of the fencing tokens has reached its maximum"},
}

// refusalOf translates an error from the server. An error with any other code means that the
// outcome is unknown.
func refusalOf(e *pgconn.PgError) error {
	r, ok := refusals[e.Code]
	if !ok {
		return e
	}
	return &driver.RefusedError{RetryAfter: r.after, Reason: "postgres: " + r.reason, Err: e}
}

// connectError translates the error of a connection that failed, or of its setup. The errors of pgx
// contain the whole configuration with the password, so only the error inside is used.
func connectError(err error) error {
	var e *pgconn.PgError
	var parse *pgconn.ParseConfigError
	var connect *pgconn.ConnectError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return refusalOf(e)
	case errors.As(err, &parse):
		return &driver.RefusedError{Reason: "postgres: the connection string that the factory uses cannot be parsed"}
	case errors.As(err, &connect):
		return &dialError{errors.Unwrap(connect)}
	}
	return fmt.Errorf("no connection: %w", err)
}

// A dialError says why there is no connection, each fact once: pgx tries each address with and
// without TLS, has a line for each try, and names the address in each layer of a line.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

func (e *dialError) Error() string {
	var causes []string
	for line := range strings.SplitSeq(e.error.Error(), "\n") {
		_, cause, dialed := strings.Cut(line, "): dial error: ") // ADDRESS (HOST): dial error: dial tcp ADDRESS: …
		if !dialed {
			cause = strings.TrimPrefix(line, "hostname resolving error: ")
		}
		if !slices.Contains(causes, cause) {
			causes = append(causes, cause)
		}
	}
	return "no connection: " + strings.Join(causes, "; ")
}

// mustRun precedes the statement in an error of fix.
const mustRun = "; an administrator must run: "

// fix returns an error that quotes a statement for an administrator.
func fix(what, statement string) error {
	return &driver.RefusedError{Reason: fmt.Sprintf("postgres: %s%s%s", what, mustRun, strings.TrimSpace(statement))}
}

// errSilent says that a session's server did not answer for a whole TTL.
var errSilent = errors.New("the server did not answer for a whole TTL")

// standbyRetry is the pause before asking again whether a standby was promoted.
const standbyRetry = 250 * time.Millisecond
