package redlocktest

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
)

var openCases = []testCase{
	{name: "parameters", needs: []condition{opens}, do: unknownParameter},
	{name: "secrets", needs: []condition{opens}, do: openSecrets},
	{name: "no-io", needs: []condition{opens, dials, realTime}, do: openWithoutIO},
	{name: "concurrent", needs: []condition{opens}, do: openConcurrently},
	{name: "prefix", needs: []condition{opens}, do: prefixes},
	{name: "spellings", needs: []condition{opens}, do: spellings},
	{name: "stored-prefix", needs: []condition{prefixed}, do: storedPrefix},
	{name: "shown-secret", needs: []condition{secret}, do: shownSecret},
}

var (
	dials    = offers("a URL with a host and a port", func(s *suite) bool { u, err := url.Parse(s.h.URL); return err == nil && u.Port() != "" })
	prefixed = offers("Harness.Prefix and Residue", func(s *suite) bool { return s.h.Prefix != "" && s.h.Residue != nil })
	secret   = offers("Harness.Secret", func(s *suite) bool { return s.h.Secret != "" })
)

// openURL opens a backend by its driver. It is closed after the case.
func (r *run) openURL(dsn, prefix string) (driver.Backend, error) {
	b, err := r.h.Driver.Open(&driver.Config{DSN: dsn, Prefix: prefix})
	switch {
	case err == nil && b == nil:
		r.fatal(opening, "Open returned neither a backend nor an error")
	case err == nil:
		r.keep(b)
	}
	return b, err
}

func (r *run) mustOpen(dsn, prefix string) driver.Backend {
	b, err := r.openURL(dsn, prefix)
	if err != nil {
		r.fatal(opening, "Open gives %v: %v", r.saw(err), err)
	}
	return b
}

// with adds a parameter to a URL, or to a list of URLs.
func with(dsn, parameter string) string {
	_, rest, _ := strings.Cut(dsn, ":")
	switch {
	case !strings.HasPrefix(rest, "//") && strings.Contains(rest, "://"):
		return dsn + "," + parameter
	case strings.Contains(dsn, "?"):
		return dsn + "&" + parameter
	}
	return dsn + "?" + parameter
}

func unknownParameter(r *run) {
	const name = "redlocktest_unknown"
	_, err := r.openURL(with(r.h.URL, name+"=1"), r.h.Prefix)
	var ie *driver.InvalidError
	switch v := r.saw(err); {
	case v == granted:
		r.fatal(refuses, "Open ignores the parameter %s, which no driver has", name)
	case !errors.As(err, &ie):
		r.fatal(opening, "Open with the parameter %s, which no driver has, gives %v, and no *InvalidError: %v", name, v, err)
	case !strings.Contains(err.Error(), name):
		r.fatal(refuses, "Open with the parameter %s gives an error that does not name it: %v", name, err)
	}
	r.mustOpen(r.h.URL, r.h.Prefix)
}

// openSecrets opens URLs that are wrong in several ways and hold a password, and checks that no
// error quotes it, not even one of a URL parser.
func openSecrets(r *run) {
	const canary = "pw-c4n4ry"
	scheme, _, _ := strings.Cut(r.h.URL, ":")
	user := scheme + "://user:" + canary + "@"
	for _, dsn := range []string{
		user + "host:notaport/", user + "host:1:2/", user + "[::1/", user + "host:1/%zz", user + "ho st:1/", user + "host:1/\x7f",
		user + "host:1/?%zz", user + "host:1/?a=1;b=2", scheme + "://user:" + canary + "%zz@host:1/", scheme + "://" + canary + "\n@host:1",
		with(r.h.URL, "password="+canary+"%zz"), with(r.h.URL, "redlocktest_unknown="+canary), user + "host:99999999/", user, scheme + ":" + canary + "@host",
	} {
		b, err := r.openURL(dsn, r.h.Prefix)
		said := fmt.Sprintf("%v %+v", err, err)
		if err == nil {
			said = fmt.Sprintf("%v %+v", b, b.Info())
		}
		if strings.Contains(said, canary) {
			r.record(noPassword, "opened by %q, the error holds the password: %s", dsn, said)
		}
	}
}

// openWithoutIO opens backends with the address of a listener of the test, and checks that Open
// makes no connection.
func openWithoutIO(r *run) {
	u, err := url.Parse(r.h.URL)
	if err != nil {
		r.pass("the URL is none for net/url")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.pass("no socket to listen at: %v", err)
	}
	defer l.Close() //nolint:errcheck // the system's backlog of it is all that was needed
	u.Host = l.Addr().String()
	if _, err := r.openURL(u.String(), r.h.Prefix); err != nil {
		r.fatal(opening, "Open fails where no server answers: %v", err)
	}
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(50 * time.Millisecond)) // connections made in the background arrive until then
	if c, err := l.Accept(); err == nil {
		_ = c.Close()
		r.fatal(opening, "Open makes connections: it must leave the first to the first request")
	}
}

func openConcurrently(r *run) {
	r.together(8, func(int) {
		b := r.mustOpen(r.h.URL, r.h.Prefix)
		r.release(r.grant(b, driver.Request{Key: r.key()}))
	})
}

// prefixes checks that the same key under two prefixes is two locks, and under one prefix one lock.
func prefixes(r *run) {
	first, second := r.h.Prefix+"redlocktest/a:", r.h.Prefix+"redlocktest/b:"
	a, b, same := r.mustOpen(r.h.URL, first), r.mustOpen(r.h.URL, second), r.mustOpen(r.h.URL, first)
	key := r.key()
	one := r.grant(a, driver.Request{Key: key})
	r.refuse(same, driver.Request{Key: key}, one)
	two := r.takes(opening, b, key, "key %q with prefix %q is taken for the same key with prefix %q: Config.Prefix is ignored", short(key), second, first)
	r.release(one)
	r.refuse(a, driver.Request{Key: key}, r.grant(same, driver.Request{Key: key}))
	r.renew(two, driver.Renewal{})
	r.release(two)
}

// spelt returns other spellings of a URL.
func spelt(dsn string) (others []string) {
	scheme, rest, ok := strings.Cut(dsn, "://")
	if !ok || strings.Contains(rest, "://") {
		return nil
	}
	rest, query, asks := strings.Cut(rest, "?")
	host, path, _ := strings.Cut(rest, "/")
	at := strings.LastIndexByte(host, '@') + 1
	user := host[:at]
	host = host[at:]
	add := func(host, path string) {
		other := scheme + "://" + user + host + path
		if asks {
			other += "?" + query
		}
		if other != dsn {
			others = append(others, other)
		}
	}
	add(host, "/"+strings.Trim(path, "/"))
	add(host, "/"+strings.Trim(path, "/")+"/")
	add(strings.ToUpper(host), "/"+path)
	if path = strings.Trim(path, "/"); path != "" {
		add(host, "//"+path)
		add(host, "/./"+path)
		add(host, fmt.Sprintf("/%%%02X%s", path[0], path[1:]))
	} else {
		add(host, "")
	}
	return others
}

// spellings opens a lock space by other spellings of its URL, such as a final slash, and checks that
// each is the same lock space, or is refused.
func spellings(r *run) {
	key := r.key()
	l := r.grant(r.mustOpen(r.h.URL, r.h.Prefix), driver.Request{Key: key})
	for _, dsn := range spelt(r.h.URL) {
		b, err := r.openURL(dsn, r.h.Prefix)
		if err == nil {
			_, err = r.try(b, driver.Request{Key: key})
		}
		if r.saw(err) == granted && r.valid(l) {
			r.record(exclusion, "the holder opened %s, and another %s: two spellings of one URL do not exclude each other", r.withoutSecret(r.h.URL), r.withoutSecret(dsn))
		}
	}
	r.holds(r.client(), key, l)
	r.release(l)
}

// withoutSecret hides the password of a URL.
func (r *run) withoutSecret(dsn string) string {
	if r.h.Secret == "" {
		return dsn
	}
	return strings.ReplaceAll(dsn, r.h.Secret, "xxxxx")
}

// storedPrefix checks that stored data that contain the key have the prefix before it.
func storedPrefix(r *run) {
	key := r.key()
	l := r.grant(r.client(), driver.Request{Key: key})
	found, err := r.h.Residue(r.ctx)
	if err != nil {
		r.fatal(inspecting, "Harness.Residue fails: %v", err)
	}
	for _, name := range found {
		if strings.Contains(name, key) && !strings.Contains(name, r.h.Prefix) {
			r.fatal(opening, "the prefix is %q, and the lock is stored as %q", r.h.Prefix, name)
		}
	}
	r.release(l)
}

// shownSecret checks that neither the backend, printed, nor its Info and String show the password.
func shownSecret(r *run) {
	b := r.client()
	key := r.key()
	l := r.grant(b, driver.Request{Key: key})
	shows := func(what, said string) {
		if strings.Contains(said, r.h.Secret) {
			r.record(noPassword, "%s holds the password", what)
		}
	}
	if s, ok := b.(fmt.Stringer); ok {
		shows("String", s.String())
		shows("the backend, printed by %+v,", fmt.Sprintf("%+v", b))
	}
	shows("Info", fmt.Sprintf("%+v", b.Info()))
	shows("the grant", fmt.Sprintf("%+v", l.Grant()))
	if i, ok := b.(driver.Inspector); ok {
		state, err := i.Lookup(r.ctx, key)
		shows("Lookup", fmt.Sprintf("%+v %v", state, err))
		found, err := i.Check(r.ctx)
		shows("Check", fmt.Sprintf("%+v %v", found, err))
	}
	r.release(l)
}

// notices searches the backends' notices for the password.
func (r *run) notices() {
	if r.h.Notices == nil || r.h.Secret == "" {
		return
	}
	for _, n := range r.h.Notices() {
		if strings.Contains(fmt.Sprintf("%+v %v", n, n.Err), r.h.Secret) {
			r.recordAt("the end of the case", noPassword, "a notice of kind %q holds the password", n.Kind)
			return
		}
	}
}
