package sqltable

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
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

// A verdict is the meaning of an error.
type verdict struct {
	kind   kind
	reason string
	after  time.Duration // how long to wait before trying again
}

// The databases' own error numbers. (MariaDB and MySQL have these in common.)
var mysqlErrors = map[uint64]verdict{
	1213: {again, "a deadlock", 0},
	1020: {again, "the row changed meanwhile", 0}, // innodb_snapshot_isolation
	1205: {again, "another transaction has locked the row or the table", 0},
	1062: {kind: duplicate},
	1146: {kind: missing},
	1054: {never, "the table has other columns: it belongs to another release, or is no table of locks", 0},
	1040: {later, "the server has too many connections", time.Second},
	1203: {later, "the user has too many connections", time.Second},
	1226: {later, "the user has used up a resource", time.Second},
	1047: {later, "the node of the cluster is not ready", time.Second},
	1044: {never, "the user may not use the database", 0},
	1045: {never, "the server refuses the user's login: check the user and the password", 0},
	1049: {never, "there is no such database", 0},
	1046: {never, "the connection names no database", 0},
	1129: {never, "the server has blocked this host", 0},
	1130: {never, "the server refuses connections from this host", 0},
	1142: {never, "the user needs SELECT, INSERT, UPDATE and DELETE on the table, and CREATE to make it", 0},
	1143: {never, "the user lacks a permission on a column", 0},
	1698: {never, "the server refuses the user's login: check the user and its authentication method", 0},
	1820: {never, "the password has expired", 0},
	1862: {never, "the password has expired", 0},
	3159: {never, "the server requires TLS (tls=on)", 0},
	1290: {later, "the server is read-only: connect to the primary", time.Second},
	1792: {never, "the connection is read-only", 0},
	1836: {later, "the server is read-only: connect to the primary", time.Second},
}

var postgresErrors = map[string]verdict{
	"40001": {again, "the row changed meanwhile", 0},
	"40P01": {again, "a deadlock", 0},
	"55P03": {again, "another transaction has locked the row", 0},
	"42P10": {never, "the table has no primary key: it is no table of locks", 0},
	"23505": {kind: duplicate},
	"42P01": {kind: missing},
	"42703": {never, "the table has other columns: it belongs to another release, or is no table of locks", 0},
	"3F000": {never, "there is no such schema", 0},
	"53300": {later, "the server has too many connections", time.Second},
	"57P03": {later, "the server is starting or shutting down", 500 * time.Millisecond},
	"28P01": {never, "the server refuses the role's login: check the password and pg_hba.conf", 0},
	"28000": {never, "the server refuses the role's login: check the role and pg_hba.conf", 0},
	"3D000": {never, "there is no such database", 0},
	"42501": {never, "the role needs SELECT, INSERT, UPDATE and DELETE on the table, and CREATE on the schema to make it", 0},
	"25006": {later, "the server is read-only: connect to the primary", time.Second},
	"26000": {never, "a pooler lost a prepared statement: set the client to the simple protocol, or the pooler to keep them", 0},
	"42P05": {never, "a pooler mixed up prepared statements: set the client to the simple protocol, or the pooler to keep them", 0},
}

var sqliteErrors = map[uint64]verdict{
	3:  {never, "this user has no permission for the file", 0},
	5:  {again, "another process keeps the database locked", 0},
	6:  {again, "another connection keeps the table locked", 0},
	8:  {never, "the database is read-only", 0},
	11: {never, "the database is damaged", 0},
	13: {later, "the disk is full", time.Second},
	14: {never, "the file cannot be opened: check its folder and the permissions", 0},
	26: {never, "the file is no database", 0},
}

// verdictOf translates an error of any client of the dialect.
func (d Dialect) verdictOf(err error) verdict {
	switch d {
	case MySQL:
		if n, ok := number(err, "Number"); ok {
			return mysqlErrors[n]
		}
	case Postgres:
		var e interface{ SQLState() string }
		if errors.As(err, &e) {
			return postgresErrors[e.SQLState()]
		}
	case SQLite:
		if file := (*fs.PathError)(nil); errors.As(err, &file) && errors.Is(err, fs.ErrNotExist) {
			if file.Op == "open folder" {
				return verdict{never, "the folder of the database is missing: make it", 0}
			}
			return verdict{kind: missing}
		}
		if n, ok := number(err, "Code"); ok {
			if n &= 0xff; n == 1 && strings.Contains(err.Error(), "no such table") {
				return verdict{kind: missing}
			} else if n == 1 && strings.Contains(err.Error(), "ON CONFLICT") {
				return postgresErrors["42P10"]
			}
			return sqliteErrors[n]
		}
	}
	return verdict{}
}

// number returns the server's error number from a client's error: a method or an exported field
// of this name. The clients share no interface, and this package imports none of them.
func number(err error, name string) (n uint64, ok bool) {
	for ; err != nil; err = errors.Unwrap(err) {
		v := reflect.ValueOf(err)
		if m := v.MethodByName(name); m.IsValid() && m.Type().NumIn() == 0 && m.Type().NumOut() == 1 {
			if n, ok = integer(m.Call(nil)[0]); ok {
				return n, true
			}
		}
		for v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct {
			continue
		}
		if f, found := v.Type().FieldByName(name); found && len(f.Index) == 1 {
			if n, ok = integer(v.FieldByIndex(f.Index)); ok {
				return n, true
			}
		}
	}
	return 0, false
}

func integer(v reflect.Value) (uint64, bool) {
	switch {
	case v.IsValid() && v.CanUint():
		return v.Uint(), true
	case v.IsValid() && v.CanInt() && v.Int() >= 0:
		return uint64(v.Int()), true
	}
	return 0, false
}

// translate turns a database's error into the driver's. Any error without a definite meaning is
// an unknown outcome.
func (c *call) translate(v verdict, err error) error {
	b := c.b
	refused := func(after time.Duration, reason string) error {
		return &driver.RefusedError{RetryAfter: after, Reason: b.info.Name + ": " + reason, Err: err}
	}
	switch v.kind {
	case missing:
		b.forget()
		no := &missingError{"table " + b.opt.Table}
		if file := (*fs.PathError)(nil); errors.As(err, &file) {
			no.what = "file " + file.Path
		}
		return &driver.RefusedError{Reason: fmt.Sprintf("%s: there is no %s; an administrator must run: %s", b.info.Name, no.what, b.SetupSQL("")), Err: no}
	case never:
		return refused(0, v.reason)
	case later:
		b.forget()
		return refused(v.after, v.reason)
	case again:
		if over := c.Over(); errors.Is(over, context.Canceled) || errors.Is(over, context.DeadlineExceeded) || errors.Is(over, driver.ErrClosed) {
			return over
		}
		return refused(100*time.Millisecond, v.reason)
	}
	b.forget() // another server may answer now
	return c.Failed(err)
}

// missingError is the inner error of the refusal when the table or SQLite's file is missing.
type missingError struct{ what string }

func (*missingError) Error() string { return "dlock bootstrap --sql prints this as well" }

// toMake returns what a call lacks according to its error, if the first lock makes it.
func (b *Backend) toMake(err error) (no *missingError, ok bool) {
	return no, b.opt.Setup && errors.As(err, &no)
}

// nothingHappened reports whether an error of ours says that the statement had no effect.
func nothingHappened(err error) bool { return errors.Is(err, driver.ErrRefused) }
