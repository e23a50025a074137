package server

import (
	"context"
	"errors"
	"fmt"
)

// Kind names a server by its program.
type Kind string

// The kinds of servers.
const (
	KindRedis     Kind = "redis-server"
	KindValkey    Kind = "valkey-server"
	KindPostgres  Kind = "postgres"
	KindPgBouncer Kind = "pgbouncer"
	KindEtcd      Kind = "etcd"
	KindMariaDB   Kind = "mariadbd"
	KindZooKeeper Kind = "zookeeper"
	KindNATS      Kind = "nats-server"
	KindConsul    Kind = "consul"
)

// Config describes the server to start. The zero value of every field but Kind is a
// server for tests: without TLS, password and persistence.
type Config struct {
	Kind Kind
	// Dir is the server's folder, an absolute path, which is made if it does not exist and is
	// kept; empty: a temporary folder, which is removed with the server. If root starts
	// postgres or pgbouncer, the folder is given to the user that the server runs as.
	Dir string
	// Password is the password that clients must give (requirepass), or the token of
	// the management of a Consul. Redis, Valkey and Consul only.
	Password string
	// Users are ACL rules, as "alice on >secret ~* +@all". Redis and Valkey only.
	Users []string
	// TLS makes the server accept nothing but TLS, with a certificate of an authority
	// of its own. Redis, Valkey, etcd, MariaDB, NATS,
	// Consul and ZooKeeper only.
	TLS bool
	// ClientCerts makes it ask clients for a certificate of that authority.
	ClientCerts bool
	// UnixOnly makes it listen only on its unix socket. Redis and Valkey only.
	UnixOnly bool
	// ReplicaOf is the server to replicate; both or neither have TLS. A postgres is then a
	// hot standby that follows by streaming, named "standby" in synchronous_standby_names.
	ReplicaOf *Server
	// Clock gives the server a wall clock of its own, which Server.SetClock sets: a library
	// replaces the system's clock functions; a C compiler makes it at the first use. Redis and
	// Valkey only, on Linux.
	Clock bool
	// Cluster enables cluster mode, of version 7 or newer. Redis and Valkey only.
	Cluster bool
	// Durable makes postgres and mariadbd write safely to disk, for tests that crash them;
	// otherwise fsync is off.
	Durable bool
	// Standby makes postgres a hot standby, which is read-only, without a primary.
	Standby bool
	// HBA are lines of pg_hba.conf, before the lines that trust all users of this machine.
	HBA []string
	// Settings are more lines of the configuration file, name and value, in order; a later one
	// replaces an earlier one if the server allows it.
	Settings []Setting
	// Args are further arguments of the program.
	Args []string

	// PoolOf is the postgres behind a PgBouncer, and PoolMode is its pooling mode: "session",
	// "transaction" or "statement".
	PoolOf   *Server
	PoolMode string

	// Command is the command line of a KindCommand, and Ready tells whether it serves: see the
	// function Command.
	Command []string
	Ready   func(ctx context.Context, addr string) error

	// PeersVia lets members of an etcd cluster or a ZooKeeper ensemble reach each other through
	// proxies: it returns the address by which member from reaches member to, which listens at
	// addr. Members count from 0. All members of an etcd reach a member by the same address, so
	// from is -1. For a ZooKeeper it is called for each pair of members and both of their
	// ports; but in an election a member with a larger number calls one with a smaller number
	// directly. Nil: addr itself.
	PeersVia func(from, to int, addr string) (string, error)

	sentinel  string        // the lines that make it a sentinel
	authority *certificates // whose certificates it uses; nil: its own
	peerURL   string        // by which the other members of an etcd reach it
	member    int           // of an ensemble, from 0
	ensemble  string        // the lines or the argument that name all its members
}

// A Setting is a line of a server's configuration file. The value is written as it
// is given; quote it where the server wants that.
type Setting struct{ Name, Value string }

func (c *Config) flavour() (flavour, error) {
	switch p := c.ReplicaOf; {
	case p != nil && (p.certs != nil) != c.TLS:
		return flavour{}, errors.New("a replica and its primary have both TLS, or neither")
	case c.Clock && !c.speaksRESP():
		return flavour{}, fmt.Errorf("%s cannot have a clock of its own", c.Kind)
	case c.Kind == KindPgBouncer && c.PoolOf == nil:
		return flavour{}, errors.New("PgBouncer needs a postgres to pool")
	}
	return flavourOf(c.Kind)
}

// An Option changes a Config.
type Option func(*Config)

// WithPassword sets Config.Password.
func WithPassword(password string) Option { return func(c *Config) { c.Password = password } }

// WithUser adds an ACL rule to Config.Users: "alice on >secret ~* +@all". With "default off"
// only such users can log in.
func WithUser(rule string) Option {
	return func(c *Config) { c.Users = append(c.Users, rule) }
}

// WithTLS sets Config.TLS.
func WithTLS() Option { return func(c *Config) { c.TLS = true } }

// WithClientCerts sets Config.TLS and Config.ClientCerts.
func WithClientCerts() Option { return func(c *Config) { c.TLS, c.ClientCerts = true, true } }

// WithUnixOnly sets Config.UnixOnly.
func WithUnixOnly() Option { return func(c *Config) { c.UnixOnly = true } }

// WithReplicaOf sets Config.ReplicaOf.
func WithReplicaOf(primary *Server) Option { return func(c *Config) { c.ReplicaOf = primary } }

// WithClock sets Config.Clock. Without a C compiler the test is skipped, or fails if CI is set,
// as with a missing server.
func WithClock() Option { return func(c *Config) { c.Clock = true } }

// WithCluster sets Config.Cluster for one node. The function Cluster starts a whole Cluster.
func WithCluster() Option { return func(c *Config) { c.Cluster = true } }

// WithAppendOnly makes the server log its writes; fsync is "always", "everysec" or "no".
func WithAppendOnly(fsync string) Option {
	return func(c *Config) {
		WithSetting("appendonly", "yes")(c)
		WithSetting("appendfsync", fsync)(c)
	}
}

// WithMaxMemory sets the server's memory limit and eviction policy: ("10mb", "noeviction").
func WithMaxMemory(limit, policy string) Option {
	return func(c *Config) {
		WithSetting("maxmemory", limit)(c)
		WithSetting("maxmemory-policy", policy)(c)
	}
}

// WithSetting adds a line to the configuration file.
func WithSetting(name, value string) Option {
	return func(c *Config) { c.Settings = append(c.Settings, Setting{name, value}) }
}

// WithArgs adds arguments to the command.
func WithArgs(args ...string) Option {
	return func(c *Config) { c.Args = append(c.Args, args...) }
}

// WithDurable sets Config.Durable.
func WithDurable() Option { return func(c *Config) { c.Durable = true } }

// WithStandby sets Config.Standby.
func WithStandby() Option { return func(c *Config) { c.Standby = true } }

// WithPeersVia sets Config.PeersVia.
func WithPeersVia(via func(from, to int, addr string) (string, error)) Option {
	return func(c *Config) { c.PeersVia = via }
}

// WithHBA adds lines to Config.HBA: "host all alice 127.0.0.1/32 scram-sha-256".
func WithHBA(lines ...string) Option {
	return func(c *Config) { c.HBA = append(c.HBA, lines...) }
}
