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

// The server's error codes that the driver itself looks for.
const (
	CodeLockTimeout = "55P03"
	CodePermission  = "42501"
	CodeExists      = "42P07"
	CodeDuplicate   = "23505"
	CodeNoSchema    = "3F000"
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
	CodePermission: {0, "the role lacks a permission"},
	"28P01":        {0, "the server refuses the role's login: check the password and pg_hba.conf"},
	"28000":        {0, "the server refuses the role's login: check the password and pg_hba.conf"},
	"3D000":        {0, "there is no such database"},
	"25006":        {StandbyRetry, "the server is read-only: connect to the primary"},
	"2200H":        {0, "the sequence of the fencing tokens has reached its maximum"},
}

// Of translates an error from the server. An error with any other code means that the
// outcome is unknown.
func Of(e *pgconn.PgError) error {
	r, ok := refusals[e.Code]
	if !ok {
		return e
	}
	return &driver.RefusedError{RetryAfter: r.after, Reason: "postgres: " + r.reason, Err: e}
}

// Connect translates the error of a failed connection. The errors of pgx contain the whole
// configuration with the password, so only the error inside is used.
func Connect(err error) error {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return Of(e)
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
