// Package verdict translates errors of PostgreSQL and of pgx into those of the driver contract.
package verdict

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
)

// The server's error codes that the driver knows.
const (
	CodeNoMemory      = "53200"
	CodeTooMany       = "53300"
	CodeStarting      = "57P03"
	CodeCanceled      = "57014"
	CodeDeadlock      = "40P01"
	CodeLockTimeout   = "55P03"
	CodePermission    = "42501"
	CodePassword      = "28P01"
	CodeAuthorization = "28000"
	CodeNoDatabase    = "3D000"
	CodeReadOnly      = "25006"
	CodeExhausted     = "2200H"
	CodeExists        = "42P07"
	CodeDuplicate     = "23505"
	CodeNoSchema      = "3F000"
)

// Of translates an error from the server. An error with any other code means that the
// outcome is unknown.
//
// perTransaction is the server's max_locks_per_transaction, where it is known.
func Of(code string, e error, perTransaction int) error {
	refused := func(after time.Duration, format string, args ...any) error {
		return &driver.RefusedError{RetryAfter: after, Reason: "postgres: " + fmt.Sprintf(format, args...), Err: e}
	}
	now := ""
	if perTransaction > 0 {
		now = fmt.Sprintf(" (now %d)", perTransaction)
	}
	switch code {
	case CodeNoMemory:
		return refused(time.Second, "the server's lock table is full: raise max_locks_per_transaction%s", now)
	case CodeTooMany:
		return refused(time.Second, "the server has too many connections: every process needs up to max_conns of them; raise max_connections or lower this")
	case CodeStarting:
		return refused(500*time.Millisecond, "the server is starting or shutting down")
	case CodeDeadlock:
		return refused(100*time.Millisecond, "the server found a deadlock and ended it by failing this request")
	case CodePermission:
		return refused(0, "the role lacks a permission")
	case CodePassword, CodeAuthorization:
		return refused(0, "the server refuses the role's login: check the password and pg_hba.conf")
	case CodeNoDatabase:
		return refused(0, "there is no such database")
	case CodeReadOnly:
		return refused(StandbyRetry, "the server is read-only: connect to the primary")
	case CodeExhausted:
		return refused(0, "the sequence of the fencing tokens has reached its maximum")
	}
	return e
}

// Connect translates the error of a failed connection. The errors of pgx contain the whole
// configuration with the password, so only the error inside is used.
func Connect(err error) error {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return Of(e.Code, e, 0)
	}
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		return &driver.RefusedError{Reason: "postgres: the connection string that the factory uses cannot be parsed"}
	}
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		return &dialError{errors.Unwrap(connect)}
	}
	return fmt.Errorf("no connection: %w", err)
}

// A dialError says why there is no connection, each fact once: pgx tries each address with and
// without TLS, and names it in each layer of its error.
type dialError struct{ err error }

func (e *dialError) Error() string {
	return "no connection: " + strings.Join(causes(e.err), "; ")
}

func (e *dialError) Unwrap() error { return e.err }

// causes returns the causes of a failed connection, each once.
func causes(err error) (all []string) {
	for e := err; e != nil; e = errors.Unwrap(e) {
		many, ok := e.(interface{ Unwrap() []error })
		if !ok {
			continue
		}
		for _, one := range many.Unwrap() {
			for _, text := range causes(one) {
				if !slices.Contains(all, text) {
					all = append(all, text)
				}
			}
		}
		return all
	}
	var op *net.OpError
	var dns *net.DNSError
	switch {
	case errors.As(err, &op):
		return []string{op.Error()}
	case errors.As(err, &dns):
		return []string{dns.Error()}
	}
	text := err.Error() // ADDRESS (HOST): cause
	address, rest, _ := strings.Cut(text, " (")
	if host, cause, ok := strings.Cut(rest, "): "); ok && strings.Contains(address, host) {
		text = address + ": " + cause
	}
	return []string{text}
}

// MustRun precedes the statement in an error of Fix.
const MustRun = "; an administrator must run: "

// Fix returns an error that quotes a statement for an administrator.
func Fix(what, statement string) error {
	return &driver.RefusedError{Reason: fmt.Sprintf("postgres: %s%s%s", what, MustRun, strings.TrimSpace(statement))}
}

// ErrSilent says that a session's server did not answer for a whole TTL.
var ErrSilent = errors.New("the server did not answer for a whole TTL")

// StandbyRetry is the pause before asking again whether a standby was promoted.
const StandbyRetry = 250 * time.Millisecond
