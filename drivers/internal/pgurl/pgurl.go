// Package pgurl reads the URLs of PostgreSQL for pgx, whose own errors quote them.
package pgurl

import (
	"cmp"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
)

// A URL is postgres://user:password@host:port,host:port/database?name=value, or one of another scheme.
// The driver asks for its own parameters.
type URL struct {
	*dsn.Params
	password string
	settings map[string]string // for pgx, which completes them from the environment and its defaults
}

// Parse reads a URL of one of these schemes. The parameters in passed go to pgx as they are.
func Parse(raw string, passed []string, schemes ...string) (*URL, error) {
	u, err := dsn.Parse(raw, "5432", schemes...)
	if err != nil {
		return nil, err
	}
	settings := map[string]string{"user": u.User, "dbname": strings.TrimPrefix(u.Path, "/")}
	if namesHost(raw) { // else it is that of the environment, or pgx's default
		var hosts, ports []string
		for _, addr := range u.Hosts {
			host, port, _ := net.SplitHostPort(addr) // as Parse has made it
			hosts, ports = append(hosts, host), append(ports, port)
		}
		settings["host"], settings["port"] = strings.Join(hosts, ","), strings.Join(ports, ",")
	}
	for _, name := range passed {
		settings[name] = u.Params.String(name, settings[name])
	}
	return &URL{u.Params, cmp.Or(u.Params.String("password", ""), u.Password), settings}, nil
}

// namesHost reports whether a URL names a host.
func namesHost(url string) bool {
	_, rest, _ := strings.Cut(url, "://")
	end := strings.IndexAny(rest+"/", "/?")
	return end > 0 && rest[end-1] != '@'
}

// Passed returns what the URL says of a parameter that goes to pgx.
func (u *URL) Passed(name string) string { return u.settings[name] }

// Config lets pgx complete the settings. It reads files of certificates and passwords, and does no other
// I/O. The password does not go through pgx's parser. Of pgx's errors, which begin with the connection
// string, it quotes the cause alone. Of several hosts pgx looks for the primary.
func (u *URL) Config() (*pgx.ConnConfig, error) {
	if n := strings.Count(u.settings["port"], ","); n > 0 && n != strings.Count(u.settings["host"], ",") {
		return nil, driver.Invalid(`parameter "port"`, "must be one number, or as many as there are hosts")
	}
	var b strings.Builder
	for name, value := range u.settings {
		if value != "" {
			b.WriteString(name + "='" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "' ")
		}
	}
	c, err := pgx.ParseConfig(strings.TrimSuffix(b.String(), " "))
	if err != nil {
		detail := "a parameter has a value that pgx cannot use"
		if inner := errors.Unwrap(err); inner != nil && u.settings["sslpassword"] == "" {
			detail += ": " + inner.Error()
		}
		return nil, driver.Invalid("URL", "%s", detail)
	}
	c.Password = cmp.Or(u.password, c.Password)
	c.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		f := pgproto3.NewFrontend(r, w)
		f.SetMaxBodyLen(MaxBody)
		return f
	}
	if Several(c) && c.ValidateConnect == nil {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	return c, nil
}

// Several reports whether a configuration names several hosts, which may be those of the environment.
func Several(c *pgx.ConnConfig) bool {
	return slices.ContainsFunc(c.Fallbacks, func(f *pgconn.FallbackConfig) bool { return f.Host != c.Host || f.Port != c.Port })
}

// MaxBody is the greatest length of a message of the server that is read: a server that is not
// what it seems may announce gigabytes, and pgx makes room for a message before it reads it.
const MaxBody = 16 << 20

// Address returns the first host and the database, without any secret.
func Address(scheme string, c *pgx.ConnConfig) string {
	port := strconv.Itoa(int(c.Port))
	host := net.JoinHostPort(c.Host, port)
	if strings.HasPrefix(c.Host, "/") {
		host = c.Host + ":" + port
	}
	return scheme + "://" + host + "/" + c.Database
}
