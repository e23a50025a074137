// Package dsn reads the parameters of a driver's URL: each is asked for by name,
// and what nobody asked for is an error that names it.
//
// No error quotes a value, nor a name that is not a plain word: in a malformed URL
// any of it may be a piece of a password.
package dsn

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Params are the parameters of one URL. Ask for each, then call Err.
type Params struct {
	values map[string]string
	known  []string
	err    error
}

// Query reads "name=value&name=value", percent-decoded, as after a URL's '?'.
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
			p.fail(driver.Invalid(label(name), "is not percent-encoded well"))
			return p
		}
		p.Add(name, value)
	}
	return p
}

// Add adds a parameter. One that is there already is an error.
func (p *Params) Add(name, value string) {
	if p.values == nil {
		p.values = map[string]string{}
	}
	if _, ok := p.values[name]; ok {
		p.fail(driver.Invalid(label(name), "is given twice"))
	}
	p.values[name] = value
}

// Has reports whether the parameter is given.
func (p *Params) Has(name string) bool {
	p.know(name)
	_, ok := p.values[name]
	return ok
}

// String returns the parameter's value, or def where it is not given.
func (p *Params) String(name, def string) string {
	if !p.Has(name) {
		return def
	}
	return p.values[name]
}

// Enum returns the parameter's value, which must be one of allowed; def where it is
// not given.
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

// Duration returns the parameter's value in Go's notation ("150ms"), at least least.
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

// Int returns the parameter's value as a whole number from least to most.
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

// Bool returns the parameter's value: true, false, on, off, 1 or 0.
func (p *Params) Bool(name string, def bool) bool {
	switch p.Enum(name, "", "true", "false", "on", "off", "1", "0") {
	case "true", "on", "1":
		return true
	case "false", "off", "0":
		return false
	}
	return def
}

// Err returns the first bad parameter, or else one that nobody asked for, as a
// *driver.InvalidError.
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
	known := "there are none but ttl and prefix"
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

// label names a parameter in an error, if it is a plain word.
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
