// Package advisory has the SQL of advisory locks: their numbers, and the statements that take,
// wait for and release them together with a token.
package advisory

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"github.com/redlock-go/redlock/driver"
)

// A Number names an advisory lock: a number of 64 bits, or a pair of 32-bit numbers, which
// are a separate space.
type Number struct {
	ID   int64
	Pair bool
}

// Args returns the number as arguments in SQL.
func (n Number) Args() string {
	if !n.Pair {
		return strconv.FormatInt(n.ID, 10)
	}
	return pairArgs(n.ID)
}

func pairArgs(n int64) string { return fmt.Sprintf("%d,%d", int32(n>>32), int32(n)) }

// writerSalt turns a lock's number into the pair that its waiting writers use.
const writerSalt int64 = 0x646c6f636b777274

// writers returns the pair that names the second lock: a waiting writer holds it, and readers
// check it first (see Slice).
func (n Number) writers() int64 {
	if n.Pair {
		return n.ID ^ (writerSalt + 1)
	}
	return n.ID ^ writerSalt
}

// writersOf is writers in SQL, for an expression of 64 bits.
func writersOf(k string) string {
	return fmt.Sprintf("((%s # %d) >> 32)::int4, (((%[1]s # %[2]d) << 32) >> 32)::int4", k, writerSalt)
}

// Where returns the SQL condition that finds the lock and its second lock in pg_locks AS l.
func (n Number) Where() string {
	sub := 1
	if n.Pair {
		sub = 2
	}
	at := func(n int64, sub int) string {
		return fmt.Sprintf("l.classid::int8 = %d AND l.objid::int8 = %d AND l.objsubid = %d", uint32(n>>32), uint32(n), sub)
	}
	return " AND (" + at(n.ID, sub) + " OR NOT l.granted AND " + at(n.writers(), 2) + ")"
}

// NumberOf returns the advisory lock of a key. Two keys with the same number wait for each
// other, which is harmless.
func NumberOf(prefix, key string) Number {
	if n, ok := fromKey(key); ok {
		return n
	}
	sum := sha256.Sum256([]byte(prefix + key))
	return Number{ID: int64(binary.BigEndian.Uint64(sum[:8]))}
}

// fromKey reads a key of Int64Key or Int32PairKey.
func fromKey(key string) (n Number, ok bool) {
	args, ok := strings.CutPrefix(key, "pg_advisory_lock(")
	if !ok {
		return n, false
	}
	args = strings.TrimSuffix(args, ")")
	one, two, pair := strings.Cut(args, ",")
	if !pair {
		v, err := strconv.ParseInt(one, 10, 64)
		return Number{ID: v}, err == nil && Int64Key(v) == key
	}
	a, err := strconv.ParseInt(one, 10, 32)
	c, err2 := strconv.ParseInt(two, 10, 32)
	return Number{ID: a<<32 | int64(uint32(c)), Pair: true}, err == nil && err2 == nil && Int32PairKey(int32(a), int32(c)) == key
}

// The statements of a session are prepared once, in SQL: EXECUTE is a single message
// of the simple protocol, and needs no planning. A lock and its token are one
// statement. Those for several keys, an array, have the name with an "s".
var (
	stLock   = [...]string{driver.Exclusive: "dlock_x", driver.Shared: "dlock_s"} // token or null
	stUnlock = [...]string{driver.Exclusive: "dlock_u", driver.Shared: "dlock_v"} // true or false
	suffixes = [...]string{driver.Exclusive: "", driver.Shared: "_shared"}        // of the server's functions
)

// Queries makes the SQL expressions for locks and tokens.
type Queries struct{ token string }

// NewQueries returns the Queries that draw tokens from sequence; empty: no tokens.
func NewQueries(sequence string) Queries {
	if sequence == "" {
		return Queries{"1"}
	}
	return Queries{"nextval(" + Literal(sequence) + "::regclass)"}
}

// last returns an expression that draws n tokens and is the last of them. Other keys may draw from
// the sequence in between: then the n numbers up to the last one are not all drawn here, and all are
// above those that were drawn before.
func (q Queries) last(n uint32) string {
	if n <= 1 {
		return q.token
	}
	return fmt.Sprintf("(SELECT max(%s) FROM generate_series(1, %d))", q.token, n)
}

// lock returns an expression that is the last of n tokens if the lock is granted, else null. A reader
// first checks that no writer waits.
func (q Queries) lock(mode driver.Mode, args, writers string, n uint32) string {
	try := "CASE WHEN pg_try_advisory_lock" + suffixes[mode] + "(" + args + ") THEN " + q.last(n) + " END"
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

func unlock(mode driver.Mode, args string) string {
	return "pg_advisory_unlock" + suffixes[mode] + "(" + args + ")"
}

// Prepare returns the statements that a new session prepares.
func (q Queries) Prepare() string {
	var b strings.Builder
	p := func(name, one, each string) {
		fmt.Fprintf(&b, "PREPARE %s(int8) AS SELECT %s;\nPREPARE %[1]ss(int8[]) AS SELECT %[3]s FROM unnest($1) AS k;\n", name, one, each)
	}
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		p(stLock[mode], q.lock(mode, "$1", writersOf("$1"), 1), q.lock(mode, "k", writersOf("k"), 1))
		p(stUnlock[mode], unlock(mode, "$1"), unlock(mode, "k"))
	}
	return b.String()
}

// Try is the statement that asks for one lock with so many tokens.
func (q Queries) Try(n Number, mode driver.Mode, tokens uint32) string {
	if n.Pair || tokens > 1 {
		return "SELECT " + q.lock(mode, n.Args(), pairArgs(n.writers()), tokens)
	}
	return execute(stLock[mode], n.ID)
}

// Unlock is the statement that gives one lock back.
func (n Number) Unlock(mode driver.Mode) string {
	if n.Pair {
		return "SELECT " + unlock(mode, n.Args())
	}
	return execute(stUnlock[mode], n.ID)
}

// Again is the statement for one more shared lease of a lock that the session shares already: a
// token, if no writer waits.
func (q Queries) Again(n Number) string { return "SELECT " + pass(pairArgs(n.writers()), q.token) }

// UnlockWriters is the statement that releases the second lock of a waiting writer.
func (n Number) UnlockWriters() string {
	return "SELECT pg_advisory_unlock(" + pairArgs(n.writers()) + ")"
}

// Many returns the statement that asks for n locks of one mode, or releases them. Their numbers are
// no pairs.
func Many(mode driver.Mode, release bool, n int, number func(i int) int64) string {
	name := stLock[mode]
	if release {
		name = stUnlock[mode]
	}
	if n == 1 {
		return execute(name, number(0))
	}
	b := make([]byte, 0, 24+21*n)
	b = append(append(append(b, "EXECUTE "...), name...), "s('{"...)
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, number(i), 10)
	}
	return string(append(b, "}')"...))
}

// execute returns the statement that executes a prepared one for one lock.
func execute(name string, number int64) string {
	b := append(append(append(make([]byte, 0, 64), "EXECUTE "...), name...), '(')
	return string(append(strconv.AppendInt(b, number, 10), ')'))
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
// writer takes a second lock, named by a pair of numbers made from the lock's number, and keeps
// it from slice to slice. Readers check this second lock before they ask for the lock.

// Slice returns the statement of one slice. show also takes the second lock of a waiting writer.
func (q Queries) Slice(n Number, mode driver.Mode, tokens uint32, show bool) string {
	wait := func(call string) string {
		return "BEGIN PERFORM " + call + "; EXCEPTION WHEN lock_not_available THEN END;"
	}
	if mode == driver.Exclusive {
		first := ""
		if show {
			first = "SELECT pg_try_advisory_lock(" + pairArgs(n.writers()) + "); "
		}
		return first + "DO $$" + wait("pg_advisory_xact_lock("+n.Args()+")") + "$$; " + q.Try(n, mode, tokens)
	}
	// The end of the subtransaction releases the writers' second lock before the wait.
	return "DO $$DECLARE passed bool := false; BEGIN " +
		wait("pg_advisory_xact_lock_shared("+pairArgs(n.writers())+"); passed := true; RAISE lock_not_available") +
		" IF passed THEN " + wait("pg_advisory_xact_lock_shared("+n.Args()+")") + " END IF; END$$; " + q.Try(n, mode, tokens)
}

// Literal quotes a string for SQL, whatever standard_conforming_strings is.
func Literal(s string) string {
	quoted := "'" + strings.NewReplacer("'", "''", `\`, `\\`).Replace(s) + "'"
	if strings.Contains(s, `\`) {
		return " E" + quoted
	}
	return quoted
}

// Int64Key returns the key of the advisory lock with exactly this number, pg_advisory_lock(n),
// to share a lock with other programs. The prefix does not apply.
func Int64Key(n int64) string { return fmt.Sprintf("pg_advisory_lock(%d)", n) }

// Int32PairKey returns the key of the advisory lock with exactly these numbers,
// pg_advisory_lock(a, b): see Int64Key.
func Int32PairKey(a, b int32) string { return fmt.Sprintf("pg_advisory_lock(%d,%d)", a, b) }
