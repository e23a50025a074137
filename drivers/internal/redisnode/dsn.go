package redisnode

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
)

// A Target is what a URL says, for either client library.
//
//	redis://user:password@host:6379/0?…     one server; rediss:// with TLS
//	redis://h1:26379,h2:26379/0?topology=sentinel&master=NAME
//	redis://h1:6379,h2:6379?topology=cluster
//	redis+unix://user:password@/run/r.sock?db=0
//
// User and password are percent-encoded where they contain one of % / ? # @ and
// ':'. The parameters are:
//
//	topology           single (default), sentinel or cluster
//	master             sentinel: the name of the primary
//	sentinel_user      sentinel: the user of the sentinels themselves
//	sentinel_password  sentinel: and their password
//	db                 unix sockets: the database
//	ca                 TLS: a file of PEM certificates to trust instead of the system's
//	cert, key          TLS: files of the client's certificate
//	server_name        TLS: the name to expect in the server's certificate
//	insecure           TLS: true does not verify the server's certificate
//	dial_timeout       for a connection (1s)
//	call_timeout       for one call to the server (1s)
//	grace              how much longer than the TTL a lock stays on the server (TTL/100 + 10ms)
//	pool_size          connections at most (10)
//	restart_guard      a lone instance: off (default), or for how long it does not grant after a restart
//	bootstrap          true: a lone instance with a guard is new, unless it has a memory
//	strict_guard       true: no instance is taken for new otherwise
//	wait_replicas      how many replicas must have a lock before it counts as granted (0)
//	foreign_gap        for how long in each second other libraries may get a lock that many wait for (0)
//	durable            true: the server forgets nothing that it has acknowledged (appendfsync always)
type Target struct {
	Network  string   // "tcp" or "unix"
	Addrs    []string // host:port, or one path
	User     string
	Password string
	DB       int
	Topology string // "single", "sentinel", "cluster"

	Master           string
	SentinelUser     string
	SentinelPassword string

	TLS *tls.Config // nil: none

	DialTimeout time.Duration
	CallTimeout time.Duration
	Grace       time.Duration
	PoolSize    int

	Guard       time.Duration
	Bootstrap   bool
	StrictGuard bool
	Durable     bool

	WaitReplicas int
	ForeignGap   time.Duration

	shown string
}

// The topologies.
const (
	Single   = "single"
	Sentinel = "sentinel"
	Cluster  = "cluster"
)

// Parse reads a URL of one of three schemes: name, name with an s for TLS, and
// name+unix. No error of it quotes a part of the URL that may hold a password.
func Parse(name, raw string) (*Target, error) {
	scheme, rest, found := strings.Cut(raw, ":")
	rest, slashes := strings.CutPrefix(rest, "//")
	secure, unix := scheme == name+"s", scheme == name+"+unix"
	if !found || !secure && !unix && scheme != name {
		return nil, driver.Invalid("URL", "must begin with %s://, %ss:// or %s+unix://", name, name, name)
	}
	if !slashes {
		return nil, driver.Invalid("URL", "has no // after %s:", scheme)
	}
	if strings.ContainsAny(rest, "#\x00\r\n") {
		return nil, driver.Invalid("URL", "contains a bare '#' or a control character (in a password write %%23 for '#')")
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, hasPath := strings.Cut(rest, "/")
	if strings.Contains(path, "@") {
		return nil, driver.Invalid("URL", "has an '@' after the first '/' (in a user or password write %%2F for '/', and %%40 for '@' in a path)")
	}
	t := &Target{Network: "tcp", Topology: Single}
	authority, err := t.credentials(authority)
	if err != nil {
		return nil, err
	}
	p := dsn.Query(query)
	if unix {
		err = t.socket(authority, path, hasPath, p)
	} else {
		err = t.hosts(authority, path, p)
	}
	if err != nil {
		return nil, err
	}
	t.options(p, secure)
	if err := p.Err(); err != nil {
		return nil, err
	}
	if err := t.topology(); err != nil {
		return nil, err
	}
	if err := t.tls(p, secure); err != nil {
		return nil, err
	}
	t.shown = t.show(scheme)
	return t, nil
}

// credentials takes user and password off the authority.
func (t *Target) credentials(authority string) (rest string, err error) {
	at := strings.LastIndexByte(authority, '@')
	if at < 0 {
		return authority, nil
	}
	user, password, _ := strings.Cut(authority[:at], ":")
	var err1, err2 error
	t.User, err1 = url.PathUnescape(user)
	t.Password, err2 = url.PathUnescape(password)
	if err1 != nil || err2 != nil {
		return "", driver.Invalid("URL", "user or password is not percent-encoded correctly (write %%25 for '%%')")
	}
	return authority[at+1:], nil
}

func (t *Target) socket(authority, path string, hasPath bool, p *dsn.Params) error {
	t.Network = "unix"
	file, err := url.PathUnescape(path)
	if err != nil || authority != "" || !hasPath || path == "" {
		return driver.Invalid("URL", "must name a socket by its whole path: ///run/redis.sock, after user:password@ if there is one")
	}
	t.Addrs = []string{filepath.FromSlash("/" + file)}
	t.DB = p.Int("db", 0, 0, 1<<20)
	return nil
}

func (t *Target) hosts(authority, path string, p *dsn.Params) error {
	sentinel := p.String("topology", "") == Sentinel
	list, err := url.PathUnescape(authority)
	if err != nil {
		return driver.Invalid("URL", "host is not percent-encoded correctly")
	}
	if list == "" {
		list = "localhost"
	}
	for host := range strings.SplitSeq(list, ",") {
		addr, ok := hostPort(host, sentinel)
		if !ok {
			return driver.Invalid("URL", "host is not of the form name, name:port or [IPv6]:port (in a user or password percent-encode '/' as %%2F, '?' as %%3F and '@' as %%40)")
		}
		t.Addrs = append(t.Addrs, addr)
	}
	if path = strings.TrimSuffix(path, "/"); path != "" {
		db, err := strconv.Atoi(path)
		if err != nil || db < 0 {
			return driver.Invalid("URL", "its path must be the number of a database: /0")
		}
		t.DB = db
	}
	return nil
}

// hostPort adds the usual port where there is none. It accepts only what cannot be
// a piece of something else.
func hostPort(s string, sentinel bool) (string, bool) {
	port := "6379"
	if sentinel {
		port = "26379"
	}
	host := s
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 || net.ParseIP(s[1:end]) == nil {
			return "", false
		}
		host = s[1:end]
		if rest := s[end+1:]; rest != "" {
			if rest[0] != ':' {
				return "", false
			}
			port = rest[1:]
		}
	} else if h, p, found := strings.Cut(s, ":"); found {
		host, port = h, p
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > 65535 || host == "" {
		return "", false
	}
	for _, c := range host {
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !plain && !strings.ContainsRune(".-_:", c) {
			return "", false
		}
	}
	return net.JoinHostPort(host, port), true
}

// options reads the parameters that need no second look.
func (t *Target) options(p *dsn.Params, secure bool) {
	if t.Network == "tcp" {
		t.Topology = p.Enum("topology", Single, Single, Sentinel, Cluster)
	}
	if t.Topology == Sentinel {
		t.Master = p.String("master", "")
		t.SentinelUser = p.String("sentinel_user", "")
		t.SentinelPassword = p.String("sentinel_password", "")
	}
	if secure {
		for _, name := range []string{"ca", "cert", "key", "server_name", "insecure"} {
			p.Has(name)
		}
	}
	t.DialTimeout = p.Duration("dial_timeout", time.Second, time.Millisecond)
	t.CallTimeout = p.Duration("call_timeout", DefaultCallTimeout, driver.MinTTL)
	t.Grace = p.Duration("grace", 0, time.Millisecond)
	t.PoolSize = p.Int("pool_size", 10, 1, 10_000)
	if p.String("restart_guard", "off") != "off" {
		t.Guard = p.Duration("restart_guard", 0, driver.MinTTL)
	}
	t.Bootstrap = p.Bool("bootstrap", false)
	t.StrictGuard = p.Bool("strict_guard", false)
	t.Durable = p.Bool("durable", false)
	t.ForeignGap = p.Duration("foreign_gap", 0, time.Millisecond)
	t.WaitReplicas = p.Int("wait_replicas", 0, 0, 1000)
}

func (t *Target) topology() error {
	switch t.Topology {
	case Single:
		if len(t.Addrs) > 1 {
			return driver.Invalid(`parameter "topology"`, "must be sentinel or cluster where several hosts are given")
		}
	case Sentinel:
		if t.Master == "" {
			return driver.Invalid(`parameter "master"`, "is missing: the name by which the sentinels know the primary")
		}
	case Cluster:
		if t.DB != 0 {
			return driver.Invalid("URL", "a Cluster has no database but 0")
		}
	}
	return nil
}

// tls makes the TLS configuration.
func (t *Target) tls(p *dsn.Params, secure bool) error {
	if !secure {
		return nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: p.String("server_name", ""), InsecureSkipVerify: p.Bool("insecure", false)}
	if c.ServerName == "" && t.Topology == Single {
		c.ServerName, _, _ = net.SplitHostPort(t.Addrs[0])
	}
	if file := p.String("ca", ""); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return driver.Invalid(`parameter "ca"`, "cannot be read: %v", reason(err))
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return driver.Invalid(`parameter "ca"`, "is no file of PEM certificates")
		}
	}
	cert, key := p.String("cert", ""), p.String("key", "")
	if (cert == "") != (key == "") {
		return driver.Invalid(`parameter "cert"`, "and key go together")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return driver.Invalid(`parameter "cert"`, "cannot be used with key: %v", reason(err))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	t.TLS = c
	return p.Err()
}

// reason leaves the path out of a file's error.
func reason(err error) error {
	if e, ok := err.(*os.PathError); ok { //nolint:errorlint // unwrapped on purpose
		return e.Err
	}
	return err
}

// String returns the URL without user, password and parameters that may be secret.
func (t *Target) String() string { return t.shown }

func (t *Target) show(scheme string) string {
	if t.Network == "unix" {
		s := scheme + "://" + t.Addrs[0]
		if t.DB != 0 {
			s += "?db=" + strconv.Itoa(t.DB)
		}
		return s
	}
	s := scheme + "://" + strings.Join(t.Addrs, ",")
	switch t.Topology {
	case Sentinel:
		return s + "/" + strconv.Itoa(t.DB) + "?master=" + url.QueryEscape(t.Master)
	case Cluster:
		return s
	}
	return s + "/" + strconv.Itoa(t.DB)
}
