package postgres

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// A lockNumber names an advisory lock: a number of 64 bits or, in a space of their own, a
// pair of 32 bits each.
type lockNumber struct {
	n    int64
	pair bool
}

// args is the number as arguments in SQL.
func (n lockNumber) args() string {
	if !n.pair {
		return strconv.FormatInt(n.n, 10)
	}
	return pairArgs(n.n)
}

func pairArgs(n int64) string { return fmt.Sprintf("%d,%d", int32(n>>32), int32(n)) }

// writerSalt makes the pair of writers of a lock from its number.
const writerSalt int64 = 0x646c6f636b777274

// writers is the pair that a waiting writer holds, and that readers pass before the lock:
// see wait.go.
func (n lockNumber) writers() int64 {
	if n.pair {
		return n.n ^ (writerSalt + 1)
	}
	return n.n ^ writerSalt
}

// writersOf is writers in SQL, of an expression of 64 bits.
func writersOf(k string) string {
	return fmt.Sprintf("((%s # %d) >> 32)::int4, (((%[1]s # %[2]d) << 32) >> 32)::int4", k, writerSalt)
}

// where finds the lock, and who waits before it, in pg_locks AS l.
func (n lockNumber) where() string {
	sub := 1
	if n.pair {
		sub = 2
	}
	at := func(n int64, sub int) string {
		return fmt.Sprintf("l.classid::int8 = %d AND l.objid::int8 = %d AND l.objsubid = %d", uint32(n>>32), uint32(n), sub)
	}
	return " AND (" + at(n.n, sub) + " OR NOT l.granted AND " + at(n.writers(), 2) + ")"
}

// Int64Key is the key of the advisory lock of this very number, pg_advisory_lock(n), with which
// a lock that other programs use already can be joined. The prefix does not apply.
func Int64Key(n int64) string { return fmt.Sprintf("pg_advisory_lock(%d)", n) }

// Int32PairKey is the key of the advisory lock of these very numbers, pg_advisory_lock(a, b):
// see Int64Key.
func Int32PairKey(a, b int32) string { return fmt.Sprintf("pg_advisory_lock(%d,%d)", a, b) }

// LockID returns the number of key's advisory lock: the first eight bytes of the SHA-256 of
// prefix and key, big-endian, or what Int64Key was given. For a key of Int32PairKey it
// is the pair, the first number in the upper half, and pair is true. In SQL:
//
//	SELECT ('x' || left(encode(sha256(convert_to(prefix || key, 'UTF8')), 'hex'), 16))::bit(64)::int8
func (b *Backend) LockID(key string) (id int64, pair bool) {
	n := b.number(b.opt.Prefix, key)
	return n.n, n.pair
}

// numberOf is the advisory lock of a key. Two keys of one number wait for each other, which
// is harmless.
func numberOf(prefix, key string) lockNumber {
	if n, ok := literalNumber(key); ok {
		return n
	}
	sum := sha256.Sum256([]byte(prefix + key))
	return lockNumber{n: int64(binary.BigEndian.Uint64(sum[:8]))}
}

// literalNumber reads a key of Int64Key or Int32PairKey.
func literalNumber(key string) (n lockNumber, ok bool) {
	args, ok := strings.CutPrefix(key, "pg_advisory_lock(")
	if !ok {
		return n, false
	}
	args = strings.TrimSuffix(args, ")")
	one, two, pair := strings.Cut(args, ",")
	if !pair {
		v, err := strconv.ParseInt(one, 10, 64)
		return lockNumber{n: v}, err == nil && Int64Key(v) == key
	}
	a, err := strconv.ParseInt(one, 10, 32)
	c, err2 := strconv.ParseInt(two, 10, 32)
	return lockNumber{n: a<<32 | int64(uint32(c)), pair: true}, err == nil && err2 == nil && Int32PairKey(int32(a), int32(c)) == key
}
