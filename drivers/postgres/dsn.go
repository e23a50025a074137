package postgres

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/pgurl"
)

// Driver opens backends by URL; it is registered as "postgres" and "postgresql".
type Driver struct{}

var _ driver.Driver = (*Driver)(nil)

// passed are the parameters that go to pgx as they are.
var passed = []string{
	"host", "port", "user", "dbname",
	"sslmode", "sslcert", "sslkey", "sslrootcert", "sslpassword", "sslsni",
	"connect_timeout", "target_session_attrs", "passfile", "service", "servicefile",
	"krbspn", "krbsrvname", "options", "application_name", "channel_binding", "sslnegotiation",
}

// ignored are parameters that providers and pools put into a URL, and that change nothing here:
// those of pools and of statements, settings that a session makes itself, and ways of
// connecting that give the same connection.
var ignored = []string{
	"pool_max_conns", "pool_min_conns", "pool_max_conn_lifetime", "pool_max_conn_lifetime_jitter",
	"pool_max_conn_idle_time", "pool_health_check_period", "connection_limit", "pool_timeout",
	"default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity",
	"timezone", "TimeZone", "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout",
	"client_encoding", "datestyle", "fallback_application_name", "search_path",
	"keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout",
}

// Open reads postgres://user:password@host:port,host:port/database?name=value.
func (*Driver) Open(cfg *driver.Config) (driver.Backend, error) {
	p, err := pgurl.Parse(cfg.DSN, passed, "postgres", "postgresql")
	if err != nil {
		return nil, err
	}
	o := &Options{
		Prefix: cfg.Prefix, Notify: cfg.Notify,
		FenceSchema:  p.String("fence_schema", ""),
		MaxConns:     p.Int("max_conns", 0, 2, 10000),
		Pooler:       p.Enum("pooler", "", "session"),
		RestartGuard: p.Duration("restart_guard", 0, time.Second),
	}
	for _, name := range ignored {
		p.Has(name)
	}
	p.Enum("gssencmode", "", "disable", "prefer")
	if err := p.Err(); err != nil {
		return nil, err
	}
	if err := o.complete(); err != nil { // before any file is read
		return nil, err
	}
	pc, err := p.Config()
	if err != nil {
		return nil, err
	}
	if pgurl.Several(pc) { // a silent host leaves time for the others
		if share := connectTimeout / time.Duration(1+len(pc.Fallbacks)); pc.ConnectTimeout == 0 || pc.ConnectTimeout > share {
			pc.ConnectTimeout = share
		}
	}
	o.Address = pgurl.Address("postgres", pc)
	b, err := New(func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, pc.Copy()) }, o)
	if err != nil {
		return nil, err
	}
	b.role = pc.User
	if hosts := inClear(pc); len(hosts) > 0 && p.Passed("sslmode") == "" && os.Getenv("PGSSLMODE") == "" {
		b.warning = fmt.Sprintf("the URL has a password and no sslmode, so a failed TLS handshake with %s is followed by an attempt without TLS, which may send the password in clear: set sslmode=verify-full, or at least require", hosts[0])
	}
	return b, nil
}

// inClear returns the hosts that a connection without TLS may send a password to, except this
// machine.
func inClear(c *pgx.ConnConfig) (hosts []string) {
	add := func(host string, encrypted bool) {
		local := strings.HasPrefix(host, "/") || strings.HasPrefix(host, "@") || host == "localhost" || net.ParseIP(host).IsLoopback()
		if !encrypted && !local && !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	if c.Password == "" {
		return nil
	}
	add(c.Host, c.TLSConfig != nil)
	for _, f := range c.Fallbacks {
		add(f.Host, f.TLSConfig != nil)
	}
	return hosts
}
