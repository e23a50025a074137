package redlocktest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

const canary = "canary-42"

// toyURL opens a lock space in memory as if it were a server's. No server listens there.
const toyURL = "toy://me:" + canary + "@127.0.0.1:1/"

// toyDriver opens lock spaces in memory by URLs of servers. Fields that are nil leave the sound
// behaviour.
type toyDriver struct {
	mu    sync.Mutex
	space *memory.Backend
	away  error // the servers cannot be reached

	parse  func(dsn string) error
	prefix func(prefix string) string
	dial   func(u *url.URL) error
	path   bool // the path, as it is written, is a part of the prefix
	plant  func(b *broken)
}

func (d *toyDriver) Open(cfg *driver.Config) (driver.Backend, error) {
	parse := d.parse
	if parse == nil {
		parse = parseToy
	}
	if err := parse(cfg.DSN); err != nil {
		return nil, err
	}
	if u, err := url.Parse(cfg.DSN); err == nil && d.dial != nil {
		if err := d.dial(u); err != nil {
			return nil, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.space == nil {
		d.space = memory.New()
	}
	b := &broken{Backend: d.space.Peer()}
	prefix := cfg.Prefix
	if d.prefix != nil {
		prefix = d.prefix(prefix)
	}
	if u, err := url.Parse(cfg.DSN); err == nil && d.path {
		prefix = u.Path + prefix
	}
	b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
		if err := b.Info().Check(prefix, req); err != nil {
			return nil, err
		}
		whole := *req
		whole.Key = prefix + req.Key
		if err := d.reach(); err != nil {
			return nil, err
		}
		return b.Backend.Acquire(ctx, &whole)
	}
	b.renew = func(ctx context.Context, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
		if err := d.reach(); err != nil {
			return driver.Grant{}, err
		}
		return l.Lease.Renew(ctx, r)
	}
	b.release = func(ctx context.Context, l *brokenLease) error {
		if err := d.reach(); err != nil {
			return err
		}
		return l.Lease.Release(ctx)
	}
	if d.plant != nil {
		d.plant(b)
	}
	return toyBackend{b, d}, nil
}

// toyBackend has no more methods than it needs.
type toyBackend struct {
	driver.Backend
	d *toyDriver
}

// parseToy parses a URL. Its errors quote only names of parameters.
func parseToy(dsn string) error {
	u, err := url.Parse(dsn)
	if err != nil {
		return driver.Invalid("URL", "must be toy://user:password@host:port/")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return driver.Invalid("URL", "has parameters that cannot be read")
	}
	for name := range query {
		return driver.Invalid(fmt.Sprintf("parameter %q", name), "is unknown")
	}
	return nil
}

// overToy opens clients with a toyDriver.
func overToy(plant func(d *toyDriver)) func(func(*broken)) Harness {
	return func(func(*broken)) Harness {
		d := &toyDriver{}
		plant(d)
		return Harness{Driver: d, URL: toyURL, Secret: canary, TTL: 200 * time.Millisecond, Faults: &Faults{
			Kill:    func() error { d.set(errBroken); return nil },
			Restart: func(bool) error { d.set(nil); return nil },
		}}
	}
}

func (d *toyDriver) reach() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.away
}

func (d *toyDriver) set(away error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.away = away
}

// shown is a backend with this String and this name in Info.
type shown struct {
	driver.Backend
	text, name string
}

func (s shown) String() string { return s.text }

func (s shown) Info() driver.Info {
	i := s.Backend.Info()
	if s.name != "" {
		i.Name = s.name
	}
	return i
}

func overShown(text, name string) func(func(*broken)) Harness {
	return func(func(*broken)) Harness {
		h := overMemory(func(*broken) {})
		open := h.Open
		h.Open = func() (driver.Backend, error) {
			b, err := open()
			return shown{b, text, name}, err
		}
		h.Secret = canary
		return h
	}
}

// openBugs concern opening, and the texts that a backend shows.
var openBugs = []bug{
	{name: "an unknown parameter is ignored", want: "open/parameters", rule: "rule 4", over: overToy(func(d *toyDriver) {
		d.parse = func(dsn string) error {
			if err := parseToy(dsn); err != nil && !strings.Contains(err.Error(), "unknown") {
				return err
			}
			return nil
		}
	})},
	{name: "an unknown parameter is not named", want: "open/parameters", rule: "rule 4", says: "does not name", over: overToy(func(d *toyDriver) {
		d.parse = func(dsn string) error {
			if parseToy(dsn) != nil {
				return driver.Invalid("URL", "is wrong")
			}
			return nil
		}
	})},
	{name: "an unknown parameter is an error of no kind", want: "open/parameters", rule: "driver.Driver.Open", over: overToy(func(d *toyDriver) {
		d.parse = func(dsn string) error {
			if err := parseToy(dsn); err != nil {
				return errors.New("toy: " + err.Error())
			}
			return nil
		}
	})},
	{name: "the error of a URL parser quotes the password", want: "open/secrets", rule: "rule 9", over: overToy(func(d *toyDriver) {
		d.parse = func(dsn string) error {
			if _, err := url.Parse(dsn); err != nil {
				return driver.Invalid("URL", "%v", err)
			}
			return parseToy(dsn)
		}
	})},
	{name: "Open connects", want: "open/no-io", rule: "driver.Driver.Open", says: "connections", alone: true, over: overToy(func(d *toyDriver) {
		d.dial = func(u *url.URL) error {
			if c, err := net.Dial("tcp", u.Host); err == nil {
				_ = c.Close()
			}
			return nil
		}
	})},
	{name: "Open fails while the servers are away", want: "fault/outage-open", rule: "driver.Driver.Open", over: overToy(func(d *toyDriver) {
		d.dial = func(*url.URL) error { return d.reach() }
	})},
	{name: "a final slash makes another lock space", want: "open/spellings", rule: "exclusion", says: "two spellings", over: overToy(func(d *toyDriver) { d.path = true })},
	{name: "the prefix is ignored", want: "open/prefix", rule: "driver.Driver.Open", says: "ignored", over: overToy(func(d *toyDriver) {
		d.prefix = func(string) string { return "" }
	})},
	{name: "the prefix is not stored", want: "open/stored-prefix", rule: "driver.Driver.Open", over: func(func(*broken)) Harness {
		var mu sync.Mutex
		var all []*broken
		h := overMemory(func(b *broken) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, b)
		})
		h.Prefix = "app:"
		h.Residue = func(ctx context.Context) (keys []string, err error) {
			mu.Lock()
			defer mu.Unlock()
			err = all[len(all)-1].List(ctx, "", func(s *driver.State) bool {
				keys = append(keys, s.Key)
				return true
			})
			return keys, err
		}
		return h
	}},
	{name: "a password in String", want: "open/shown-secret", rule: "rule 9", says: "String", over: overShown("toy://me:"+canary+"@host", "")},
	{name: "a password in Info", want: "open/shown-secret", rule: "rule 9", says: "Info", over: overShown("toy", "toy "+canary)},
	{name: "a password in a notice", stress: true, want: "open/shown-secret", rule: "rule 9", says: "notice", over: func(f func(*broken)) Harness {
		h := overShown("toy", "")(f)
		h.Notices = func() []driver.Notice {
			return []driver.Notice{{Kind: driver.NoticeDisconnected, Detail: "dial toy://me:" + canary + "@host: refused"}}
		}
		return h
	}},
}
