package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
)

// Driver opens backends by URL; it is registered as "postgres" and "postgresql".
type Driver struct{}

var _ driver.Driver = (*Driver)(nil)

// passed are the parameters that go to pgx as they are.
var passed = []string{
	"host", "port", "user", "dbname",
	"sslmode", "sslcert", "sslkey", "sslrootcert", "sslpassword", "sslsni",
	"connect_timeout", "target_session_attrs", "passfile", "service", "servicefile",
	"krbspn", "krbsrvname", "options", "application_name",
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
	"sslnegotiation",
}

// Open reads postgres://user:password@host:port,host:port/database?name=value. It parses the
// URL itself, because the errors of pgx quote it.
func (*Driver) Open(cfg *driver.Config) (driver.Backend, error) {
	u, err := dsn.Parse(cfg.DSN, "5432", "postgres", "postgresql")
	if err != nil {
		return nil, err
	}
	p := u.Params
	o := &Options{
		Prefix: cfg.Prefix, Notify: cfg.Notify,
		Fencing:      p.String("fencing", "on"),
		MaxConns:     p.Int("max_conns", 0, 2, 10000),
		Pooler:       p.Enum("pooler", "", "session"),
		RestartGuard: p.Duration("restart_guard", 0, time.Second),
	}
	settings := map[string]string{"user": u.User, "dbname": strings.TrimPrefix(u.Path, "/")}
	if namesHost(cfg.DSN) { // else it is that of the environment, or pgx's default
		var hosts, ports []string
		for _, addr := range u.Hosts {
			host, port, _ := net.SplitHostPort(addr) // as Parse has made it
			hosts, ports = append(hosts, host), append(ports, port)
		}
		settings["host"], settings["port"] = strings.Join(hosts, ","), strings.Join(ports, ",")
	}
	for _, name := range passed {
		settings[name] = p.String(name, settings[name])
	}
	if n := strings.Count(settings["port"], ","); n > 0 && n != strings.Count(settings["host"], ",") {
		return nil, driver.Invalid(`parameter "port"`, "must be one number, or as many as there are hosts")
	}
	password := p.String("password", u.Password)
	for _, name := range ignored {
		p.Has(name)
	}
	p.Enum("gssencmode", "", "disable", "prefer")
	if p.Enum("channel_binding", "", "disable", "prefer", "require") == "require" && settings["sslmode"] != "verify-full" {
		return nil, driver.Invalid(`parameter "channel_binding"`, "is not possible with pgx: set sslmode=verify-full, which also proves the server's identity, or leave channel_binding out")
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	if _, err := o.complete(); err != nil { // before any file is read
		return nil, err
	}
	pc, err := config(settings, password)
	if err != nil {
		return nil, err
	}
	o.Address = address(pc)
	b, err := New(func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, pc.Copy()) }, o)
	if err != nil {
		return nil, err
	}
	b.role = pc.User
	if hosts := inClear(pc); len(hosts) > 0 && settings["sslmode"] == "" && os.Getenv("PGSSLMODE") == "" {
		b.warning = fmt.Sprintf("the URL has a password and no sslmode, so a failed TLS handshake with %s is followed by an attempt without TLS, which may send the password in clear: set sslmode=verify-full, or at least require", hosts[0])
	}
	return b, nil
}

// namesHost reports whether a URL names a host.
func namesHost(url string) bool {
	_, rest, _ := strings.Cut(url, "://")
	end := strings.IndexAny(rest+"/", "/?")
	return end > 0 && rest[end-1] != '@'
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

// config lets pgx complete the settings from the environment, ~/.pgpass and its defaults. The
// password does not go through pgx's parser. Of pgx's errors, which begin with the connection
// string, it quotes the cause alone.
func config(settings map[string]string, password string) (*pgx.ConnConfig, error) {
	var b strings.Builder
	for name, value := range settings {
		if value != "" {
			b.WriteString(name + "='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "' ")
		}
	}
	c, err := pgx.ParseConfig(strings.TrimSuffix(b.String(), " "))
	if err != nil {
		detail := "a parameter has a value that pgx cannot use"
		if inner := errors.Unwrap(err); inner != nil && settings["sslpassword"] == "" {
			detail += ": " + inner.Error()
		}
		return nil, driver.Invalid("URL", "%s", detail)
	}
	if password != "" {
		c.Password = password
	}
	c.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		f := pgproto3.NewFrontend(r, w)
		f.SetMaxBodyLen(maxBody)
		return f
	}
	// Of several hosts pgx looks for the primary, and a silent one leaves time for the others.
	if strings.Contains(settings["host"], ",") {
		if c.ValidateConnect == nil {
			c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
		}
		if share := connectTimeout / time.Duration(1+len(c.Fallbacks)); c.ConnectTimeout == 0 || c.ConnectTimeout > share {
			c.ConnectTimeout = share
		}
	}
	return c, nil
}

// address returns the first host, without any secret.
func address(c *pgx.ConnConfig) string {
	host := net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	if strings.HasPrefix(c.Host, "/") {
		host = c.Host + ":" + strconv.Itoa(int(c.Port))
	}
	return "postgres://" + host + "/" + c.Database
}
