package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
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
	"github.com/redlock-go/redlock/drivers/postgres/internal/wire"
)

// Driver opens backends by URL; it is registered as "postgres" and "postgresql".
type Driver struct{}

var _ driver.Driver = (*Driver)(nil)

// passed are the parameters that go to pgx as they are.
var passed = []string{
	"sslmode", "sslcert", "sslkey", "sslrootcert", "sslpassword", "sslsni",
	"connect_timeout", "target_session_attrs", "passfile", "service", "servicefile",
	"krbspn", "krbsrvname", "options", "application_name",
}

// ignored are parameters that providers and pools put into a URL, and that change nothing here:
// those of pools and of statements, settings that a session makes itself, and ways of
// connecting that give the same connection. Check names those that a URL has.
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
	a, query, err := parseURL(cfg.DSN)
	if err != nil {
		return nil, err
	}
	p := dsn.Query(query)
	o := options(p)
	o.Prefix, o.Notify = cfg.Prefix, cfg.Notify
	if err := a.parameters(p); err != nil {
		return nil, err
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	if _, err := o.complete(); err != nil { // before any file is read
		return nil, err
	}
	pc, err := a.config()
	if err != nil {
		return nil, err
	}
	o.Address = address(pc)
	b, err := New(func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, pc.Copy()) }, o)
	if err != nil {
		return nil, err
	}
	b.ignored, b.role = a.ignored, pc.User
	if hosts := inClear(pc); len(hosts) > 0 && a.settings["sslmode"] == "" && os.Getenv("PGSSLMODE") == "" {
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

// options reads the driver's own parameters.
func options(p *dsn.Params) *Options {
	return &Options{
		Fencing:      p.String("fencing", "on"),
		MaxConns:     p.Int("max_conns", 0, 2, 10000),
		Pooler:       p.Enum("pooler", "", "session"),
		RestartGuard: p.Duration("restart_guard", 0, time.Second),
	}
}

// target is where a URL points.
type target struct {
	user, password  string
	hasUser, hasPwd bool
	hosts, ports    []string
	database        string
	settings        map[string]string
	ignored         []string // parameters
}

// parseURL takes a URL apart. None of its errors quotes a part of it.
func parseURL(raw string) (*target, string, error) {
	_, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return nil, "", driver.Invalid("URL", "must be postgres://user:password@host:port/database")
	}
	if strings.Contains(rest, "#") {
		return nil, "", malformed("a bare '#'")
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, database, _ := strings.Cut(rest, "/")
	if strings.ContainsAny(database, "@/") {
		return nil, "", malformed("a bare '@' or '/' after the host")
	}
	t := &target{settings: map[string]string{}}
	hosts := authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, password, has := strings.Cut(authority[:i], ":")
		hosts, t.hasUser, t.hasPwd = authority[i+1:], user != "", has
		t.user, t.password = user, password
	}
	for _, part := range []*string{&t.user, &t.password, &database} {
		s, err := url.PathUnescape(*part)
		if err != nil || strings.ContainsRune(s, 0) {
			return nil, "", driver.Invalid("URL", "is not percent-encoded correctly")
		}
		*part = s
	}
	t.database = database
	if err := t.readHosts(hosts); err != nil {
		return nil, "", err
	}
	return t, query, nil
}

func malformed(what string) error {
	return driver.Invalid("URL", "has %s (percent-encode '/', '?', '#' and '@' in a password: %%2F, %%3F, %%23, %%40)", what)
}

// readHosts reads host:port,host:port; the port may be left out.
func (t *target) readHosts(s string) error {
	if s == "" {
		return nil
	}
	for h := range strings.SplitSeq(s, ",") {
		host, port := h, ""
		if i := strings.LastIndexByte(h, ':'); i >= 0 && !strings.HasSuffix(h, "]") {
			host, port = h[:i], h[i+1:]
			if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
				return malformed("a port that is not a number from 1 to 65535")
			}
		}
		host, err := url.PathUnescape(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
		if err != nil || host == "" || strings.ContainsAny(host, "'\\ \x00") {
			return malformed("an invalid host")
		}
		t.hosts, t.ports = append(t.hosts, host), append(t.ports, port)
	}
	return nil
}

// parameters reads the parameters for pgx, and those that replace parts of the URL.
func (t *target) parameters(p *dsn.Params) error {
	for _, name := range ignored {
		if p.Has(name) {
			t.ignored = append(t.ignored, name)
		}
	}
	if p.Enum("channel_binding", "", "disable", "prefer", "require") == "require" && p.String("sslmode", "") != "verify-full" {
		return driver.Invalid(`parameter "channel_binding"`, "is not possible with pgx: set sslmode=verify-full, which also proves the server's identity, or leave channel_binding out")
	} else if p.Has("channel_binding") {
		t.ignored = append(t.ignored, "channel_binding")
	}
	if p.Enum("gssencmode", "", "disable", "prefer") != "" {
		t.ignored = append(t.ignored, "gssencmode")
	}
	for _, name := range passed {
		if p.Has(name) {
			t.settings[name] = p.String(name, "")
		}
	}
	if p.Has("user") {
		t.user, t.hasUser = p.String("user", ""), true
	}
	if p.Has("password") {
		t.password, t.hasPwd = p.String("password", ""), true
	}
	if p.Has("host") {
		t.hosts = strings.Split(p.String("host", ""), ",")
		t.ports = make([]string, len(t.hosts))
	}
	if p.Has("port") {
		t.ports = strings.Split(p.String("port", ""), ",")
		for _, port := range t.ports {
			if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
				return driver.Invalid(`parameter "port"`, "must be a number from 1 to 65535, or one for each host: 5432,5433")
			}
		}
	}
	if n := len(t.ports); n > 1 && n != len(t.hosts) {
		return driver.Invalid(`parameter "port"`, "must be one number, or as many as there are hosts")
	}
	t.database = p.String("dbname", t.database)
	return nil
}

// config lets pgx complete the target from the environment, ~/.pgpass and its defaults. The
// password does not go through pgx's parser.
func (t *target) config() (*pgx.ConnConfig, error) {
	var b strings.Builder
	add := func(name, value string) {
		b.WriteString(name + "='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "' ")
	}
	if len(t.hosts) > 0 {
		add("host", strings.Join(t.hosts, ","))
	}
	if ports := strings.Join(t.ports, ","); strings.Trim(ports, ",") != "" {
		for i, port := range t.ports {
			if port == "" {
				t.ports[i] = "5432"
			}
		}
		add("port", strings.Join(t.ports, ","))
	}
	if t.hasUser {
		add("user", t.user)
	}
	if t.database != "" {
		add("dbname", t.database)
	}
	for name, value := range t.settings {
		add(name, value)
	}
	c, err := pgx.ParseConfig(strings.TrimSuffix(b.String(), " "))
	if err != nil {
		return nil, t.unreadable(err)
	}
	if t.hasPwd {
		c.Password = t.password
	}
	c.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		f := pgproto3.NewFrontend(r, w)
		f.SetMaxBodyLen(wire.MaxBody)
		return f
	}
	failover(c)
	return c, nil
}

// failover adapts the configuration to several hosts: pgx looks for the primary among them, and
// a silent host leaves time for the others.
func failover(c *pgx.ConnConfig) {
	hosts := map[string]bool{net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))): true}
	for _, f := range c.Fallbacks { // also one without TLS
		hosts[net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port)))] = true
	}
	if len(hosts) == 1 {
		return
	}
	if c.ValidateConnect == nil {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	if share := connectTimeout / time.Duration(1+len(c.Fallbacks)); c.ConnectTimeout == 0 || c.ConnectTimeout > share {
		c.ConnectTimeout = share
	}
}

// unreadable names the part that pgx cannot use, and leaves out the connection string with
// which pgx's errors begin.
func (t *target) unreadable(err error) error {
	detail := "a parameter has a value that pgx cannot use"
	if inner := errors.Unwrap(err); inner != nil && t.settings["sslpassword"] == "" {
		detail += ": " + inner.Error()
	} else if v, ok := t.settings["target_session_attrs"]; ok && inner == nil && v != "" {
		detail += " (target_session_attrs)"
	}
	return driver.Invalid("URL", "%s", detail)
}

// address returns the first host, without any secret.
func address(c *pgx.ConnConfig) string {
	if strings.HasPrefix(c.Host, "/") {
		return "postgres://" + c.Host + ":" + strconv.Itoa(int(c.Port)) + "/" + c.Database
	}
	return "postgres://" + net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))) + "/" + c.Database
}
