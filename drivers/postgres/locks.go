package postgres

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/redlock-go/redlock/driver"
)

// This file has the SQL of advisory locks: the statements that take, wait for and release them
// together with a token.

// A number names an advisory lock.
type number int64

// numberOf returns the advisory lock of a key. Two keys with the same number wait for each
// other, which is harmless.
func numberOf(prefix, key string) number {
	if digits, ok := strings.CutPrefix(key, "pg_advisory_lock("); ok {
		n, err := strconv.ParseInt(strings.TrimSuffix(digits, ")"), 10, 64)
		if err == nil && Int64Key(n) == key {
			return number(n)
		}
	}
	sum := sha256.Sum256([]byte(prefix + key))
	return number(binary.BigEndian.Uint64(sum[:8]))
}

// Int64Key returns the key of the advisory lock with exactly this number, pg_advisory_lock(n),
// to share a lock with other programs. The prefix does not apply.
func Int64Key(n int64) string { return fmt.Sprintf("pg_advisory_lock(%d)", n) }

// LockID returns the number of key's advisory lock: the first eight bytes of the SHA-256 of
// prefix and key, big-endian, or the argument of Int64Key. In SQL:
//
//	SELECT ('x' || left(encode(sha256(convert_to(prefix || key, 'UTF8')), 'hex'), 16))::bit(64)::int8
func (b *Backend) LockID(key string) int64 { return int64(numberOf(b.opt.Prefix, key)) }

func (n number) String() string { return strconv.FormatInt(int64(n), 10) }

// writerSalt turns a lock's number into that of its second lock, which a waiting writer holds, and
// readers check first (see slice). That one is named by two numbers of 32 bits, which are a separate
// space.
const writerSalt = 0x646c6f636b777274

// writers returns the two numbers of the second lock, as arguments in SQL.
func (n number) writers() string {
	w := n ^ writerSalt
	return fmt.Sprintf("%d,%d", int32(w>>32), int32(w))
}

// writersOf is writers in SQL, for an expression of 64 bits.
func writersOf(k string) string {
	return fmt.Sprintf("((%s # %d) >> 32)::int4, (((%[1]s # %[2]d) << 32) >> 32)::int4", k, writerSalt)
}

// where returns the SQL condition that finds the lock and its second lock in pg_locks AS l.
func (n number) where() string {
	at := func(n number, sub int) string {
		return fmt.Sprintf("l.classid::int8 = %d AND l.objid::int8 = %d AND l.objsubid = %d", uint32(n>>32), uint32(n), sub)
	}
	return " AND (" + at(n, 1) + " OR NOT l.granted AND " + at(n^writerSalt, 2) + ")"
}

// The statements of a session are prepared once, in SQL: EXECUTE is a single message
// of the simple protocol, and needs no planning. A lock and its token are one
// statement. Those for several keys, an array, have the name with an "s".
var (
	lockNames   = [...]string{driver.Exclusive: "dlock_x", driver.Shared: "dlock_s"} // token or null
	unlockNames = [...]string{driver.Exclusive: "dlock_u", driver.Shared: "dlock_v"} // true or false
	suffixes    = [...]string{driver.Exclusive: "", driver.Shared: "_shared"}        // of the server's functions
)

// queries makes the SQL for locks and tokens.
type queries struct{ token string } // the expression that draws one

// last returns an expression that draws n tokens and is the last of them. Other keys may draw from
// the sequence in between: then the n numbers up to the last one are not all drawn here, and all are
// above those that were drawn before.
func (q queries) last(n uint32) string {
	if n <= 1 {
		return q.token
	}
	return fmt.Sprintf("(SELECT max(%s) FROM generate_series(1, %d))", q.token, n)
}

// lock returns an expression that is the last of n tokens if the lock is granted, else null. A reader
// first checks that no writer waits.
func (q queries) lock(mode driver.Mode, k, writers string, n uint32) string {
	try := "CASE WHEN pg_try_advisory_lock" + suffixes[mode] + "(" + k + ") THEN " + q.last(n) + " END"
	if mode == driver.Shared {
		return pass(writers, try)
	}
	return try
}

// pass takes and releases the writers' second lock. It does not keep it until the statement's
// end, because a writer that begins to wait tries to take it.
func pass(writers, then string) string {
	return "CASE WHEN pg_try_advisory_lock_shared(" + writers + ") THEN CASE WHEN pg_advisory_unlock_shared(" + writers + ") THEN " + then + " END END"
}

// prepare returns the statements that a new session prepares.
func (q queries) prepare() string {
	var b strings.Builder
	p := func(name string, expr func(k string) string) {
		fmt.Fprintf(&b, "PREPARE %s(int8) AS SELECT %s;\nPREPARE %[1]ss(int8[]) AS SELECT %[3]s FROM unnest($1) AS k;\n", name, expr("$1"), expr("k"))
	}
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		p(lockNames[mode], func(k string) string { return q.lock(mode, k, writersOf(k), 1) })
		p(unlockNames[mode], func(k string) string { return "pg_advisory_unlock" + suffixes[mode] + "(" + k + ")" })
	}
	return b.String()
}

// try is the statement that asks for one lock with so many tokens.
func (q queries) try(n number, mode driver.Mode, tokens uint32) string {
	if tokens > 1 {
		return "SELECT " + q.lock(mode, n.String(), n.writers(), tokens)
	}
	return execute(lockNames[mode], n)
}

// again is the statement for one more shared lease of a lock that the session shares already: a
// token, if no writer waits.
func (q queries) again(n number) string { return "SELECT " + pass(n.writers(), q.token) }

// executeAll returns the statement that executes a prepared one for the locks of all the requests.
func executeAll(name string, ops []*op) string {
	if len(ops) == 1 {
		return execute(name, ops[0].l.number)
	}
	b := make([]byte, 0, 24+21*len(ops))
	b = append(append(append(b, "EXECUTE "...), name...), "s('{"...)
	for i, o := range ops {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(o.l.number), 10)
	}
	return string(append(b, "}')"...))
}

// execute returns the statement that executes a prepared one for one lock.
func execute(name string, n number) string {
	b := append(append(append(make([]byte, 0, 64), "EXECUTE "...), name...), '(')
	return string(append(strconv.AppendInt(b, int64(n), 10), ')'))
}

// A wait is a sequence of slices on a connection of its own: statements that each wait in the
// server's queue for less than a second. A running statement has a snapshot: CREATE INDEX
// CONCURRENTLY waits for its end, and VACUUM keeps rows for it. An index build under a lease
// would never end if the waiters' statements did not end.
//
// A slice waits for a transaction-level lock, in a subtransaction that a timeout rolls back,
// and only then tries the session-level lock. So no lock leaks: a timeout that coincides with
// the grant rolls the grant back.
//
// During a writer's slice the server's queue holds back readers of other sessions. Between two
// slices it does not, and never readers of a session that shares the lock already. So a waiting
// writer takes a second lock, and keeps it from slice to slice. Readers check this second lock
// before they ask for the lock.

// slice returns the statement of one slice. show also takes the second lock of a waiting writer. The
// wait is a condition, which plpgsql evaluates by itself: PERFORM costs the server a fifth of the time of
// a handoff more.
func (q queries) slice(n number, mode driver.Mode, tokens uint32, show bool) string {
	wait := func(call, then string) string {
		return "BEGIN IF " + call + " IS NULL THEN END IF;" + then + " EXCEPTION WHEN lock_not_available THEN END;"
	}
	first := ""
	if show {
		first = "SELECT pg_try_advisory_lock(" + n.writers() + "); "
	}
	if mode == driver.Exclusive {
		return first + "DO $$" + wait("pg_advisory_xact_lock("+n.String()+")", "") + "$$; " + q.try(n, mode, tokens)
	}
	// The end of the subtransaction releases the writers' second lock before the wait.
	return "DO $$DECLARE passed bool := false; BEGIN " +
		wait("pg_advisory_xact_lock_shared("+n.writers()+")", " passed := true; RAISE lock_not_available;") +
		" IF passed THEN " + wait("pg_advisory_xact_lock_shared("+n.String()+")", "") + " END IF; END$$; " + q.try(n, mode, tokens)
}

// literal quotes a string for SQL, whatever standard_conforming_strings is.
func literal(s string) string {
	return " E'" + strings.NewReplacer("'", "''", `\`, `\\`).Replace(s) + "'"
}
