// Package dsn reads the parameters of a driver's URL. A driver asks for each parameter
// by its name and type; [Params.Err] then reports the first bad value, or a parameter
// that the driver did not ask for.
//
// Drivers of any module may use it. A driver cuts its URL at the '?' and passes the rest to
// [Query]. The parameters ttl and prefix never reach a driver, because package dlock takes them
// out before it calls Open.
//
// Every error is a *driver.InvalidError that names the parameter. No error quotes a
// value, nor a name that is not a plain word: in a malformed URL any part of it may
// belong to a password.
package dsn

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Params are the parameters of one URL. Ask for each parameter, then call Err. The zero value
// has no parameters; Add adds them. A Params is not safe for concurrent use.
//
// A method that finds a bad value returns its default and keeps the error for Err, so
// that a driver can read all parameters in one expression.
type Params struct {
	values map[string]string
	known  []string
	err    error
}

// Query reads the part of a URL after its '?': "name=value&name=value", with values
// percent-decoded ('+' is a space) and names as they are. It never returns nil; Err reports
// malformed text. A bare '@' or '#' is an error, since it means that a password before it was
// not percent-encoded.
func Query(raw string) *Params {
	p := &Params{values: map[string]string{}}
	if strings.ContainsAny(raw, "@#") {
		p.fail(driver.Invalid("URL", "has a bare '@' or '#' among its parameters (percent-encode '?', '#' and '@' in a password: %%3F, %%23, %%40)"))
		return p
	}
	for pair := range strings.SplitSeq(raw, "&") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		value, err := url.QueryUnescape(value)
		if err != nil {
			p.fail(driver.Invalid(label(name), "is not percent-encoded correctly"))
			return p
		}
		p.Add(name, value)
	}
	return p
}

// Add adds a parameter with a decoded value, for URLs whose parameters are not written
// as a query. Adding a name twice is an error, and the first value stays.
func (p *Params) Add(name, value string) {
	if p.values == nil {
		p.values = map[string]string{}
	}
	if _, ok := p.values[name]; ok {
		p.fail(driver.Invalid(label(name), "is given twice"))
		return
	}
	p.values[name] = value
}

// Has reports whether the parameter is given, even if it is empty.
func (p *Params) Has(name string) bool {
	p.know(name)
	_, ok := p.values[name]
	return ok
}

// String returns the parameter's value, or def if it is not given.
func (p *Params) String(name, def string) string {
	if !p.Has(name) {
		return def
	}
	return p.values[name]
}

// Enum returns the parameter's value, which must be one of allowed, or def if it is not
// given. def need not be allowed.
func (p *Params) Enum(name, def string, allowed ...string) string {
	if !p.Has(name) {
		return def
	}
	v := p.values[name]
	if !slices.Contains(allowed, v) {
		p.fail(driver.Invalid(label(name), "must be one of %s", strings.Join(allowed, ", ")))
		return def
	}
	return v
}

// Duration returns the parameter's value, written as time.ParseDuration reads it
// ("150ms"), which must be at least least, or def if it is not given.
func (p *Params) Duration(name string, def, least time.Duration) time.Duration {
	if !p.Has(name) {
		return def
	}
	d, err := time.ParseDuration(p.values[name])
	if err != nil || d < least {
		p.fail(driver.Invalid(label(name), "must be a duration such as 150ms or 10s, of at least %v", least))
		return def
	}
	return d
}

// Int returns the parameter's value, a decimal number from least to most, or def if it
// is not given.
func (p *Params) Int(name string, def, least, most int) int {
	if !p.Has(name) {
		return def
	}
	n, err := strconv.Atoi(p.values[name])
	if err != nil || n < least || n > most {
		p.fail(driver.Invalid(label(name), "must be a whole number from %d to %d", least, most))
		return def
	}
	return n
}

// Bool returns the parameter's value, one of true, false, on, off, 1 and 0, or def if it
// is not given.
func (p *Params) Bool(name string, def bool) bool {
	switch p.Enum(name, "", "true", "false", "on", "off", "1", "0") {
	case "true", "on", "1":
		return true
	case "false", "off", "0":
		return false
	}
	return def
}

// Err returns an error for the first bad parameter, or else for the first one (by name) that
// the driver did not ask for; that error lists the known names. It returns nil if there is no
// such parameter. Call it after asking for the last parameter.
func (p *Params) Err() error {
	if p.err != nil {
		return p.err
	}
	var unknown []string
	for name := range p.values {
		if !slices.Contains(p.known, name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	slices.Sort(p.known)
	known := "the only parameters are ttl and prefix"
	if len(p.known) > 0 {
		known = "known are ttl, prefix, " + strings.Join(p.known, ", ")
	}
	return driver.Invalid(label(unknown[0]), "is unknown; %s", known)
}

func (p *Params) know(name string) {
	if !slices.Contains(p.known, name) {
		p.known = append(p.known, name)
	}
}

func (p *Params) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

// label returns how an error names a parameter: its name if that is a plain word.
func label(name string) string {
	if len(name) == 0 || len(name) > 40 {
		return "a parameter"
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c != '_' && c != '-' && c != '.' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return "a parameter"
		}
	}
	return "parameter " + strconv.Quote(name)
}
