package sqltable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// A kind is the meaning of a database error for its statement.
type kind uint8

const (
	unknown   kind = iota // it may have taken effect
	again                 // it had no effect, and may succeed at once
	duplicate             // the row exists already
	missing               // the table is missing, or SQLite's file
	never                 // it had no effect, and cannot succeed with the server's configuration
	later                 // it had no effect, and may succeed later
)

// kinds has the databases' own numbers of errors. MariaDB and MySQL have these in common.
var kinds = map[Dialect]map[kind][]string{
	MySQL: {
		again:     {"1213", "1020", "1205"}, // a deadlock; innodb_snapshot_isolation; the wait for a lock is over
		duplicate: {"1062"},
		missing:   {"1146"},
		// Connections, resources, a node of a cluster that is not ready, a server that is read-only.
		later: {"1040", "1203", "1226", "1047", "1290", "1836"},
		// Rights, logins, the name of the database, blocked hosts, passwords that are over, columns.
		never: {"1054", "1044", "1045", "1049", "1046", "1129", "1130", "1142", "1143", "1698", "1792", "1820", "1862", "3159"},
	},
	Postgres: {
		again:     {"40001", "40P01", "55P03"},
		duplicate: {"23505"},
		missing:   {"42P01"},
		later:     {"53300", "57P03", "25006"},
		never:     {"42703", "28P01", "28000", "3D000", "3F000", "42501", "42P10", "26000", "42P05"},
	},
	SQLite: { // the lowest byte of its codes
		again: {"5", "6"},
		later: {"13"},
		never: {"3", "8", "11", "14", "26"},
	},
}

const (
	layoutDiffers = "the table has other columns: it belongs to another release, or is no table of locks"
	noKey         = "the table has no primary key: it is no table of locks"
	statementLost = "a pooler lost or mixed up a prepared statement: set the client to the simple protocol, or the pooler to keep them"
	rightsNeeded  = "SELECT, INSERT, UPDATE and DELETE on the table are needed, and CREATE to make it"
	rowLocked     = "another transaction has locked the row or the table"
)

// reasons say what the database's own text does not.
var reasons = map[Dialect]map[string]string{
	MySQL: {"1054": layoutDiffers, "1142": rightsNeeded, "1205": rowLocked, "3159": "the server requires TLS (tls=on)"},
	Postgres: {
		"42703": layoutDiffers, "42501": rightsNeeded, "55P03": rowLocked, "42P10": noKey,
		"26000": statementLost, "42P05": statementLost,
	},
	SQLite: {
		"5": "another process keeps the database locked", "6": "another connection keeps the table locked",
		"8": "the database is read-only", "14": "the file cannot be opened: check its folder and the permissions",
	},
}

// verdictOf translates an error of any client of the dialect to its kind and a reason.
func (d Dialect) verdictOf(err error) (kind, string) {
	code := ""
	var state interface{ SQLState() string }
	file := (*fs.PathError)(nil)
	switch {
	case d == MySQL:
		code = number(err, "Number", math.MaxUint16)
	case d == Postgres && errors.As(err, &state):
		code = state.SQLState()
	case d != SQLite:
	case errors.As(err, &file) && errors.Is(err, fs.ErrNotExist) && file.Op == "open folder":
		return never, "the folder of the database is missing: make it"
	case file != nil && errors.Is(err, fs.ErrNotExist):
		return missing, ""
	default:
		code = number(err, "Code", math.MaxUint8)
		if code == "1" && strings.Contains(err.Error(), "no such table") {
			return missing, ""
		} else if code == "1" && strings.Contains(err.Error(), "no such column") {
			return never, layoutDiffers
		} else if code == "1" && strings.Contains(err.Error(), "ON CONFLICT") {
			return never, noKey
		}
	}
	for k, codes := range kinds[d] {
		if slices.Contains(codes, code) {
			return k, cmp.Or(reasons[d][code], "the database refuses")
		}
	}
	return unknown, ""
}

// number returns the server's error number in a client's error: a method or an exported field of this
// name. The clients share no interface, and this package imports none of them.
func number(err error, name string, most uint64) string {
	for ; err != nil; err = errors.Unwrap(err) {
		v := reflect.ValueOf(err)
		n := reflect.Value{}
		if m := v.MethodByName(name); m.IsValid() && m.Type().NumIn() == 0 && m.Type().NumOut() == 1 {
			n = m.Call(nil)[0]
		} else if v = reflect.Indirect(v); v.Kind() == reflect.Struct {
			n = v.FieldByName(name)
		}
		switch {
		case n.IsValid() && n.CanUint():
			return strconv.FormatUint(n.Uint()&most, 10)
		case n.IsValid() && n.CanInt() && n.Int() >= 0:
			return strconv.FormatUint(uint64(n.Int())&most, 10)
		}
	}
	return ""
}

// translate turns a database's error into the driver's. Any error without a definite meaning is
// an unknown outcome.
func (c *call) translate(k kind, reason string, err error) error {
	b := c.b
	no := &driver.RefusedError{Reason: b.info.Name + ": " + reason, Err: err}
	switch k {
	case missing:
		b.forget()
		what := "table " + b.opt.Table
		if file := (*fs.PathError)(nil); errors.As(err, &file) {
			what = "file " + file.Path
		}
		no.Reason = fmt.Sprintf("%s: there is no %s; an administrator must run: %s", b.info.Name, what, b.SetupSQL(""))
		no.Err = errMissing
		return no
	case never:
		return no
	case later:
		b.forget()
		no.RetryAfter = time.Second
		return no
	case again:
		if over := c.Over(); errors.Is(over, context.Canceled) || errors.Is(over, context.DeadlineExceeded) || errors.Is(over, driver.ErrClosed) {
			return over
		}
		no.RetryAfter = 100 * time.Millisecond
		return no
	}
	b.forget() // another server may answer now
	return c.Failed(err)
}

// errMissing is the inner error of the refusal when the table or SQLite's file is missing.
var errMissing = errors.New("dlock bootstrap --sql prints this as well")

// nothingHappened reports whether an error of ours says that the statement had no effect.
func nothingHappened(err error) bool { return errors.Is(err, driver.ErrRefused) }
