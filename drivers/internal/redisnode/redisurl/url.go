// Package redisurl parses the URLs of Redis and Valkey. It uses no client library, and its only
// I/O is reading certificates.
package redisurl

import (
	"crypto/tls"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
)

// A Target is a parsed URL, for either client library. The documentation of package goredis
// describes the URLs and their parameters.
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
	PoolSize    int

	Guard     time.Duration
	Bootstrap bool
	Durable   bool

	WaitReplicas int

	shown string
}

// DefaultCallTimeout bounds one call to the server, and sets the not-after of its requests.
const DefaultCallTimeout = time.Second

// The topologies.
const (
	Single   = "single"
	Sentinel = "sentinel"
	Cluster  = "cluster"
)

// Parse reads a URL of one of three schemes: name, name with an s for TLS, and name+unix. Its
// errors quote no part of the URL that may have a password.
func Parse(name, raw string) (*Target, error) {
	_, query, _ := strings.Cut(raw, "?")
	port := "6379"
	if dsn.Query(query).String("topology", "") == Sentinel {
		port = "26379"
	}
	u, err := dsn.Parse(raw, port, name, name+"s", name+"+unix")
	if err != nil {
		return nil, err
	}
	t := &Target{Network: "tcp", Addrs: u.Hosts, User: u.User, Password: u.Password, Topology: Single}
	if u.Scheme == name+"+unix" {
		if len(u.Path) < 2 || len(u.Hosts) != 1 || u.Hosts[0] != "localhost:"+port {
			return nil, driver.Invalid("URL", "must name a socket by its whole path: ///run/redis.sock, after user:password@ if there is one")
		}
		t.Network, t.Addrs = "unix", []string{filepath.FromSlash(u.Path)}
		t.DB = u.Params.Int("db", 0, 0, 1<<20)
	} else if path := strings.Trim(u.Path, "/"); path != "" {
		if t.DB, err = strconv.Atoi(path); err != nil || t.DB < 0 {
			return nil, driver.Invalid("URL", "its path must be the number of a database: /0")
		}
	}
	t.options(u.Params)
	t.TLS = u.Params.TLS(u.Scheme == name+"s")
	if err := u.Params.Err(); err != nil {
		return nil, err
	}
	if err := t.topology(); err != nil {
		return nil, err
	}
	if t.TLS != nil && t.TLS.ServerName == "" && t.Topology == Single {
		t.TLS.ServerName, _, _ = net.SplitHostPort(t.Addrs[0])
	}
	t.shown = t.show(u.Scheme)
	return t, nil
}

// options reads the simple parameters.
func (t *Target) options(p *dsn.Params) {
	if t.Network == "tcp" {
		t.Topology = p.Enum("topology", Single, Single, Sentinel, Cluster)
	}
	if t.Topology == Sentinel {
		t.Master = p.String("master", "")
		t.SentinelUser = p.String("sentinel_user", "")
		t.SentinelPassword = p.String("sentinel_password", "")
	}
	t.DialTimeout = p.Duration("dial_timeout", time.Second, time.Millisecond)
	t.CallTimeout = p.Duration("call_timeout", DefaultCallTimeout, driver.MinTTL)
	t.PoolSize = p.Int("pool_size", 10, 1, 10_000)
	if p.String("restart_guard", "off") != "off" {
		t.Guard = p.Duration("restart_guard", 0, driver.MinTTL)
	}
	t.Bootstrap = p.Bool("bootstrap", false)
	t.Durable = p.Bool("durable", false)
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
