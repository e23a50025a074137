// Package target takes the URLs of database servers apart.
package target

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
	"github.com/redlock-go/redlock/drivers/sqltable"
)

// A Target is scheme://user:password@host:port,host:port/database?name=value.
type Target struct {
	Scheme         string
	User, Password string
	HasPassword    bool
	Hosts          []string
	Ports          []string // beside the hosts; empty where none is given
	Database       string
	Params         *dsn.Params
}

// Parse takes a URL apart. No error of it quotes a part of the URL that may hold a password.
func Parse(raw string) (*Target, error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return nil, driver.Invalid("URL", "must be scheme://user:password@host:port/database")
	}
	if strings.ContainsAny(rest, "#\x00\r\n\x7f ") {
		return nil, malformed("a bare '#', a blank or a control character")
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, database, _ := strings.Cut(rest, "/")
	if strings.ContainsAny(database, "@/") {
		return nil, malformed("a bare '@' or '/' after the host")
	}
	t := &Target{Scheme: scheme, Params: dsn.Query(query)}
	hosts := authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		hosts = authority[i+1:]
		t.User, t.Password, t.HasPassword = strings.Cut(authority[:i], ":")
	}
	for _, part := range []*string{&t.User, &t.Password, &database} {
		s, err := url.PathUnescape(*part)
		if err != nil || strings.ContainsRune(s, 0) {
			return nil, driver.Invalid("URL", "is not percent-encoded correctly")
		}
		*part = s
	}
	t.Database = database
	return t, t.hosts(hosts)
}

func malformed(what string) error {
	return driver.Invalid("URL", "has %s (percent-encode '/', '?', '#' and '@' in a password: %%2F, %%3F, %%23, %%40)", what)
}

func (t *Target) hosts(s string) error {
	if s == "" {
		return driver.Invalid("URL", "names no host")
	}
	for h := range strings.SplitSeq(s, ",") {
		host, port := h, ""
		if i := strings.LastIndexByte(h, ':'); i >= 0 && !strings.HasSuffix(h, "]") {
			host, port = h[:i], h[i+1:]
			if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
				return malformed("a port that is not a number from 1 to 65535")
			}
		}
		name := host
		if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
			name = host[1 : len(host)-1]
		} else if strings.Contains(host, ":") {
			return malformed("a host that is none")
		}
		if name == "" || strings.ContainsAny(name, `%'"\@[]`) {
			return malformed("a host that is none")
		}
		t.Hosts, t.Ports = append(t.Hosts, name), append(t.Ports, port)
	}
	return nil
}

// Options reads the parameters that all databases have.
func Options(cfg *driver.Config, p *dsn.Params) *sqltable.Options {
	return &sqltable.Options{
		Prefix: cfg.Prefix, Event: cfg.Notify, CloseDB: true,
		Table:       p.String("table", sqltable.DefaultTable),
		Setup:       p.Bool("setup", false),
		CallTimeout: p.Duration("call_timeout", sqltable.DefaultCallTimeout, driver.MinTTL),
	}
}

// TLS reads the parameters of TLS; nil: none is wanted. tls is "off", "on", or "insecure",
// which does not verify the server's certificate.
func TLS(p *dsn.Params, host string) (*tls.Config, error) {
	mode := p.Enum("tls", "off", "off", "on", "insecure")
	ca, cert, key := p.String("ca", ""), p.String("cert", ""), p.String("key", "")
	name := p.String("server_name", host)
	if mode == "off" {
		if ca+cert+key != "" {
			return nil, driver.Invalid(`parameter "tls"`, "is off, and ca, cert or key is given: set tls=on")
		}
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name, InsecureSkipVerify: mode == "insecure"}
	if ca != "" {
		pem, err := os.ReadFile(filepath.Clean(ca))
		if err != nil {
			return nil, driver.Invalid(`parameter "ca"`, "cannot be read: %v", reason(err))
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, driver.Invalid(`parameter "ca"`, "is no file of PEM certificates")
		}
	}
	if (cert == "") != (key == "") {
		return nil, driver.Invalid(`parameter "cert"`, "and key go together")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, driver.Invalid(`parameter "cert"`, "cannot be used with key: %v", reason(err))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// reason leaves the path out of a file's error.
func reason(err error) error {
	if e, ok := err.(*os.PathError); ok { //nolint:errorlint // unwrapped on purpose
		return e.Err
	}
	return err
}
