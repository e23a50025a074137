package postgres

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
)

// The server's error codes that mean something here.
const (
	codeNoMemory      = "53200"
	codeTooMany       = "53300"
	codeStarting      = "57P03"
	codeCanceled      = "57014"
	codeDeadlock      = "40P01"
	codeLockTimeout   = "55P03"
	codePermission    = "42501"
	codePassword      = "28P01"
	codeAuthorization = "28000"
	codeNoDatabase    = "3D000"
	codeReadOnly      = "25006"
	codeExhausted     = "2200H"
	codeExists        = "42P07"
	codeDuplicate     = "23505"
	codeNoSchema      = "3F000"
)

// verdict translates an error that the server answered with; an error that is none of the
// definite ones is unknown.
//
// perTransaction is the server's max_locks_per_transaction, where it is known.
func verdict(code string, e error, perTransaction int) error {
	refused := func(after time.Duration, format string, args ...any) error {
		return &driver.RefusedError{RetryAfter: after, Reason: "postgres: " + fmt.Sprintf(format, args...), Err: e}
	}
	now := ""
	if perTransaction > 0 {
		now = fmt.Sprintf(" (now %d)", perTransaction)
	}
	switch code {
	case codeNoMemory:
		return refused(time.Second, "the server's lock table is full: raise max_locks_per_transaction%s", now)
	case codeTooMany:
		return refused(time.Second, "the server has too many connections: every process needs up to max_sessions + max_waiters of them; raise max_connections or lower these")
	case codeStarting:
		return refused(500*time.Millisecond, "the server is starting or shutting down")
	case codeDeadlock:
		return refused(100*time.Millisecond, "the server ended a deadlock at the cost of this request")
	case codePermission:
		return refused(0, "the role lacks a permission")
	case codePassword, codeAuthorization:
		return refused(0, "the server does not let the role in: look at the password and at pg_hba.conf")
	case codeNoDatabase:
		return refused(0, "there is no such database")
	case codeReadOnly:
		return refused(standbyRetry, "the server is read-only: connect to the primary")
	case codeExhausted:
		return refused(0, "the sequence of the fencing tokens has come to its end")
	}
	return fmt.Errorf("postgres: %w", e)
}

// connectError translates why there is no connection. pgx's own errors carry the
// whole configuration, with the password: only what is inside goes on.
func connectError(err error) error {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return verdict(e.Code, e, 0)
	}
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		return &driver.RefusedError{Reason: "postgres: the connection string that the factory uses cannot be parsed"}
	}
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		err = errors.Unwrap(connect)
	}
	return fmt.Errorf("postgres: no connection: %w", err)
}

// hasToRun stands before the statement in an error of fix.
const hasToRun = "; an administrator has to run: "

// fix quotes a statement for an administrator in an error.
func fix(what, statement string) error {
	return &driver.RefusedError{Reason: fmt.Sprintf("postgres: %s%s%s", what, hasToRun, strings.TrimSpace(statement))}
}

// errSilent says that a session's server did not answer for a whole TTL.
var errSilent = errors.New("the server did not answer for a whole TTL")

// errTimeout says that one attempt took too long.
var errTimeout = errors.New("postgres: the server did not answer in time")
