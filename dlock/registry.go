package dlock

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
)

var registry struct {
	sync.RWMutex
	drivers map[string]driver.Driver
}

// Register makes a driver available under a name, which is also the scheme of its URLs. It
// panics if d is nil or the name is taken: both are programming errors. Packages of drivers
// call it from their init.
func Register(name string, d driver.Driver) {
	if d == nil {
		panic("dlock: Register of a nil driver as " + name)
	}
	registry.Lock()
	defer registry.Unlock()
	if _, taken := registry.drivers[name]; taken {
		panic("dlock: Register called twice for " + name)
	}
	if registry.drivers == nil {
		registry.drivers = map[string]driver.Driver{}
	}
	registry.drivers[name] = d
}

// Drivers returns the names of the registered drivers, sorted.
func Drivers() []string {
	registry.RLock()
	defer registry.RUnlock()
	return slices.Sorted(maps.Keys(registry.drivers))
}

// Open opens the driver registered under name with dsn and returns a Client of it.
// The parameters ttl (the default TTL; an error where locks have none) and prefix (goes
// before every key) of the DSN belong to this package; the others are the driver's, and one
// that it does not know is an error. Open does no network I/O: see Client.Ping.
//
// Errors are ErrInvalid, name the bad part, and never hold a password.
func Open(name, dsn string, opts ...Option) (*Client, error) {
	var client atomic.Pointer[Client] // it is made after the backend
	whole := &driver.Config{Notify: func(n driver.Notice) {
		if c := client.Load(); c != nil {
			c.notice(n)
		}
	}}
	cfg := defaults()
	b, err := open(name, dsn, whole, &cfg)
	if err != nil {
		return nil, fmt.Errorf("dlock: %w", err)
	}
	c, err := newClient(b, cfg, opts)
	if err != nil {
		_ = b.Close() // nothing was sent yet; the option's error is the one to report
		return nil, err
	}
	client.Store(c)
	return c, nil
}

// OpenURL is Open with the driver that the text before the first ':' names:
//
//	memory:                            in this process
//	file:                              on this machine
//	redis://user:password@host:6379/0  on a server
//
// The package drivers/all registers every driver of this module.
func OpenURL(url string, opts ...Option) (*Client, error) {
	name, err := scheme(url)
	if err != nil {
		return nil, fmt.Errorf("dlock: %w", err)
	}
	return Open(name, url, opts...)
}

// OpenBackend opens a URL and returns the bare backend, for composing by hand: the
// nodes of a quorum, or a wrapper around a driver. Its ttl parameter is refused,
// since a backend has no default. The caller closes the backend.
func OpenBackend(url string) (driver.Backend, error) {
	b, err := openBackend(url, &driver.Config{}, "a client, and this opens a bare backend")
	if err != nil {
		return nil, fmt.Errorf("dlock: %w", err)
	}
	return b, nil
}

// openBackend opens a backend as a part of the whole, without a TTL of its own.
func openBackend(url string, whole *driver.Config, ttlBelongsTo string) (driver.Backend, error) {
	name, err := scheme(url)
	if err != nil {
		return nil, err
	}
	var c config
	b, err := open(name, url, whole, &c)
	if err != nil || !c.ttlSet {
		return b, err
	}
	_ = b.Close() // nothing was sent yet
	return nil, driver.Invalid(`parameter "ttl"`, "belongs to %s", ttlBelongsTo)
}

// open opens a backend as a part of the whole, whose notices it sends, and whose prefix it has if the
// whole is open already (DSN). The parameters of the DSN that are for the client go into c.
func open(name, dsn string, whole *driver.Config, c *config) (b driver.Backend, err error) {
	registry.RLock()
	d := registry.drivers[name]
	registry.RUnlock()
	if d == nil {
		return nil, unknownDriver(name)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("open %s: %w", name, err)
		}
	}()
	rest, params, err := splitParams(dsn)
	if err != nil {
		return nil, err
	}
	cfg := &driver.Config{DSN: rest, Prefix: params["prefix"], Notify: whole.Notify}
	if _, given := params["prefix"]; whole.DSN != "" {
		if given && cfg.Prefix != whole.Prefix { // a lock that has another name on some nodes excludes nobody
			return nil, driver.Invalid(`parameter "prefix"`, "differs from that of the whole, to which it belongs")
		}
		cfg.Prefix = whole.Prefix
	}
	if len(cfg.Prefix) >= driver.MaxKey {
		return nil, driver.Invalid(`parameter "prefix"`, "leaves no room for a key: the limit is %d bytes together", driver.MaxKey)
	}
	if t, ok := params["ttl"]; ok {
		if c.ttl, err = time.ParseDuration(t); err != nil || c.ttl <= 0 {
			return nil, driver.Invalid(`parameter "ttl"`, "must be a duration such as 10s")
		}
		c.ttlSet = true
	}
	c.prefix = cfg.Prefix
	cfg.Resolve = func(url string) (driver.Backend, error) {
		return openBackend(url, cfg, "the whole URL, not to one of those in it")
	}
	return d.Open(cfg)
}

// scheme returns the text before the first ':', which names the driver.
func scheme(url string) (string, error) {
	name, rest, ok := strings.Cut(url, ":")
	known := packages[name] != "" || slices.Contains(Drivers(), name)
	if !ok || !isScheme(name) || !known && !strings.HasPrefix(rest, "//") {
		// It may be a password, so the error does not quote it.
		return "", driver.Invalid("URL", `must begin with a driver's name and a colon, as in "file:" or "redis://host:6379/0"`)
	}
	return name, nil
}

func isScheme(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789+-._") == ""
}

// packages holds, by registered name, the import that registers it: for errors alone.
var packages = map[string]string{
	"memory": "drivers/memory", "file": "drivers/file", "redlock": "drivers/redlock", "both": "dlock/both",
	"redis": "drivers/goredis", "rediss": "drivers/goredis", "redis+unix": "drivers/goredis",
	"valkey": "drivers/valkeygo", "valkeys": "drivers/valkeygo", "valkey+unix": "drivers/valkeygo",
	"postgres": "drivers/postgres", "postgresql": "drivers/postgres",
	"etcd": "drivers/etcd", "etcds": "drivers/etcd", "zk": "drivers/zookeeper", "zks": "drivers/zookeeper",
	"nats": "drivers/nats", "tls": "drivers/nats", "consul": "drivers/consul", "consuls": "drivers/consul",
	"mysql": "drivers/sqltable/mysql", "mariadb": "drivers/sqltable/mysql", "pgtable": "drivers/sqltable/pgtable", "sqlite": "drivers/sqltable/sqlite",
}

func unknownDriver(name string) error {
	if !isScheme(name) {
		return driver.Invalid("driver", "its name is not a URL's scheme")
	}
	hint := "forgotten import?"
	if pkg, ok := packages[name]; ok {
		hint = "forgotten import of github.com/redlock-go/redlock/" + pkg + "?"
	}
	return driver.Invalid("driver", "%q is unknown (%s); registered: %s", name, hint, cmp.Or(strings.Join(Drivers(), ", "), "none"))
}

// splitParams takes ttl and prefix out of a DSN. Parameters stand after the first
// '?', separated by '&'; or, where the DSN is a list of URLs, between its commas, or spaces.
func splitParams(dsn string) (rest string, params map[string]string, err error) {
	head, tail, _ := strings.Cut(dsn, "?")
	sep := "&"
	name, opaque, _ := strings.Cut(dsn, ":")
	if name == "both" {
		head, tail, sep = name+":", opaque, " "
	} else if !strings.HasPrefix(opaque, "//") && strings.Contains(opaque, "://") {
		head, tail, sep = name+":", opaque, ","
	}
	params = map[string]string{}
	var others []string
	for item := range strings.SplitSeq(tail, sep) {
		name, value, _ := strings.Cut(item, "=")
		if name != "ttl" && name != "prefix" {
			if item != "" || sep != "&" {
				others = append(others, item)
			}
			continue
		}
		if _, twice := params[name]; twice {
			return "", nil, driver.Invalid("parameter "+strconv.Quote(name), "is given twice")
		}
		if params[name], err = url.QueryUnescape(value); err != nil {
			return "", nil, driver.Invalid("parameter "+strconv.Quote(name), "is not percent-encoded correctly")
		}
	}
	rest = strings.Join(others, sep)
	if sep == "&" && rest != "" {
		rest = "?" + rest
	}
	return head + rest, params, nil
}
