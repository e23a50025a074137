package sqltable

import (
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A Dialect says which family of SQL databases a *sql.DB connects to.
type Dialect uint8

// The dialects. The zero Dialect is none.
const (
	// MySQL is MySQL 5.7 or newer and MariaDB 10.2 or newer, with InnoDB.
	MySQL Dialect = iota + 1
	// Postgres is PostgreSQL 14 or newer.
	Postgres
	// SQLite is SQLite 3.35 or newer.
	SQLite
)

// String returns "mysql", "pgtable" or "sqlite".
func (d Dialect) String() string {
	switch d {
	case MySQL:
		return "mysql"
	case Postgres:
		return "pgtable"
	case SQLite:
		return "sqlite"
	}
	return "unknown"
}

// layout is the version of the stored data. It is stored as the owner of the mark.
const layout = "dlock1"

// The statements are written once, with placeholders that each dialect replaces:
//
//	TABLE     the table, quoted
//	NOW       the server's clock, in microseconds since 1970
//	MARK      the name of the mark: no bytes, which no key has
//	READERS   the owner of a key that readers have
//	KEPT      the owner of a key that is kept for a writer
//	NEXT      the token of the next reader
//	ADDED, REPLACED, HAS  the readers with one more, with $3 for $2, and whether $2 is among them
//	GREATEST  the larger of two
//	LEAST     the smaller of two
//	TOKEN(x)  x, which is sent to the client
//	BYTES(x, 'hex')  x, in a form that the client's settings do not change: see decode
//	$1        an argument
//
// A row is a key. It is free if it has no owner, or if its owner's time is over. The row of the
// mark has the layout's version as its owner, the largest token of all rows that were deleted,
// and the time when the next clean-up is due.
type statements struct {
	take, look, grow, renew, release, undo, takeAway string
	begin, due, old, raise, remove, list             string

	takeKept, join, edit, settle, close string // see shared.go
}

// floorOf is the least value of a new token (driver.NextFence): the proposal $5, clamped to
// near the clock, or the clock if there is no proposal.
const floorOf = `CASE WHEN $5 = 0 THEN NOW ELSE LEAST(GREATEST($5, NOW - 2000000), NOW + 500000) END`

// maxFence is driver.MaxFence.
const maxFence = `9007199254740991`

// ranged returns a statement that takes a key with so many tokens, from one that takes it with one.
func ranged(text string, tokens uint32) string {
	if tokens <= 1 {
		return text
	}
	return strings.NewReplacer("fence + 1,", fmt.Sprintf("fence + %d,", tokens), "fence < "+maxFence, fmt.Sprintf("fence <= %s - %d", maxFence, tokens)).Replace(text)
}

// common has the statements of all dialects.
var common = statements{
	// take takes a key that has a row. $1 name, $2 owner, $3 microseconds, $4 not-after, $5 floor.
	take: `UPDATE TABLE SET owner = $2, fence = TOKEN(GREATEST(fence + 1, ` + floorOf + `)), granted = NOW, expires = NOW + $3
		WHERE name = $1 AND (owner = MARK OR expires <= NOW) AND NOW <= $4 AND fence < ` + maxFence,
	// look reads a key's row, or the mark: nulls mean that there is no row.
	look: `SELECT ` + columns + ` FROM (SELECT 1 AS one) AS o LEFT JOIN TABLE AS k ON k.name = $1`,
	// grow makes the row of a key without one, as held. It locks the mark, so that the mark is
	// not raised meanwhile.
	grow: `INSERT INTO TABLE (name, owner, fence, granted, expires)
		SELECT $1, $2, TOKEN(GREATEST(m.fence + 1, ` + floorOf + `)), NOW, NOW + $3 FROM ONE_MARK WHERE NOW <= $4 AND m.fence < ` + maxFence,
	// $1 name, $2 owner, $3 token, $4 microseconds, $5 not-after.
	renew: `UPDATE TABLE SET expires = NOW + $4 WHERE name = $1 AND owner = $2 AND fence = $3 AND expires > NOW AND NOW <= $5`,
	// $1 name, $2 owner, $3 token.
	release: `UPDATE TABLE SET owner = MARK, expires = NOW WHERE name = $1 AND owner = $2 AND fence = $3`,
	// undo frees the lock of an attempt whose token is unknown. $1 name, $2 owner.
	undo: `UPDATE TABLE SET owner = MARK, expires = NOW WHERE name = $1 AND owner = $2`,
	// $1 name, $2 token.
	takeAway: `UPDATE TABLE SET owner = MARK, expires = NOW WHERE name = $1 AND fence = $2 AND owner > MARK AND expires > NOW`,

	// begin makes the mark. $1 layout.
	begin: `INSERT INTO TABLE (name, owner, fence, granted, expires) VALUES (MARK, $1, 0, 0, 0)`,
	// due assigns the clean-up to one client for an interval. $1 layout, $2 microseconds.
	due: `UPDATE TABLE SET expires = NOW + $2 WHERE name = MARK AND owner = $1 AND (expires <= NOW OR expires > NOW + 2 * $2)`,
	// old selects keys that have been free for long, and whose tokens are not at their end: the
	// mark of such a key would end the tokens of all keys. $1 microseconds, $2 how many at most.
	old: `SELECT BYTES(name, 'hex'), fence FROM TABLE WHERE name > MARK AND expires < NOW - $1 AND fence < ` + maxFence + ` LIMIT $2`,
	// raise raises the mark. $1 token.
	raise: `UPDATE TABLE SET fence = GREATEST(fence, $1) WHERE name = MARK`,
	// remove deletes rows that are still free. $1 microseconds, $2 token; then the names.
	remove: `DELETE FROM TABLE WHERE expires < NOW - $1 AND fence <= $2 AND name IN (NAMES)`,
	// list selects the held keys between two names, in order: after $1, at least $2, below $3,
	// at most $4 of them.
	list: `SELECT ` + columns + ` FROM TABLE AS k
		WHERE name > $1 AND name >= $2 AND ($3 = MARK OR name < $3) AND owner > MARK AND expires > NOW ORDER BY name LIMIT $4`,

	// join adds a reader. $1 name, $2 its entry up to the token, $3 its end, $4 not-after, $5 floor.
	// MySQL sets one column after the other, so each is used before it is set.
	join: `UPDATE TABLE AS l SET readers = ADDED,
		granted = CASE WHEN ` + sharing + ` THEN l.granted ELSE 0 END, expires = GREATEST(CASE WHEN ` + sharing + ` THEN l.expires ELSE 0 END, $3),
		fence = TOKEN(NEXT), owner = READERS
		WHERE l.name = $1 AND (l.owner = MARK OR l.expires <= NOW OR l.owner = READERS AND l.granted <= NOW) AND NOW <= $4 AND l.fence < ` + maxFence,
	// edit replaces a reader's entry. $1 name, $2 the entry, $3 the new one or none, $4 its end, $5
	// not-after, $6 the end of the entry.
	edit: `UPDATE TABLE AS l SET readers = REPLACED, expires = GREATEST(l.expires, $4)
		WHERE l.name = $1 AND ` + sharing + ` AND HAS AND NOW <= $5 AND NOW < $6`,
	// settle replaces all. $1 name, $2 the readers, $3 the new ones, $4 owner, $5 end, $6 granted.
	settle: `UPDATE TABLE AS l SET readers = $3, owner = $4, expires = $5
		WHERE l.name = $1 AND l.owner = READERS AND l.readers = $2 AND l.granted = $6`,
	// close lets no further reader in. $1 name, $2 for how long, in microseconds, $3 if they are let
	// in before this time is over.
	close: `UPDATE TABLE AS l SET granted = NOW + $2 WHERE l.name = $1 AND ` + sharing + ` AND l.granted < NOW + $3`,
}

// columns are those of a row; that of the readers only if it counts.
const columns = `NOW, BYTES(k.name, 'hex'), BYTES(k.owner, 'hex'), CASE WHEN k.owner = READERS THEN BYTES(k.readers, 'hex') END, k.fence, k.granted, k.expires`

const (
	sharing = `l.owner = READERS AND l.expires > NOW`                                    // readers have the key
	among   = `(CASE WHEN ` + sharing + ` THEN COALESCE(l.readers, MARK) ELSE MARK END)` // these readers
)

// The servers' clocks. In MySQL it is the time when the statement began: after a wait for a row
// the lock is shorter than it could be. In PostgreSQL it is the present time, after any wait.
// In SQLite it is read when the statement has locked the database, in milliseconds.
const (
	nowMySQL    = `TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))`
	nowPostgres = `(extract(epoch FROM clock_timestamp()) * 1000000)::bigint`
	nowSQLite   = `(CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000)`
)

// texts returns the statements of a dialect. In PostgreSQL a statement waits for at most wait for a
// row that another transaction has locked. (MySQL and SQLite have settings of the connection.)
func (d Dialect) texts(table string, wait time.Duration) statements {
	s := common
	next := `GREATEST(l.fence + 1, ` + floorOf + `)` // a reader's token
	switch d {
	case MySQL:
		s.grow += ` LOCK IN SHARE MODE`
		s.begin = strings.Replace(s.begin, "INSERT", "INSERT IGNORE", 1)
		s.translate("ONE_MARK WHERE", `TABLE AS m WHERE m.name = MARK AND m.owner = `+d.literal([]byte(layout))+` AND`,
			"TOKEN", "LAST_INSERT_ID", "BYTES", "", ", 'hex'", "",
			"ADDED", `CONCAT(`+among+`, $2, NEXT, '|')`, "REPLACED", `REPLACE(l.readers, $2, $3)`, "HAS", `LOCATE($2, l.readers) > 0`, "NEXT", next)
	case Postgres:
		// A statement that waited for a row does not check its conditions again if the row did
		// not change, so it locks the row first; OFFSET 0 keeps the planner from checking the
		// conditions before the lock.
		// The setting is part of each statement, because a pooler changes connections between two.
		patient := fmt.Sprintf(` AND set_config('lock_timeout', '%d', true) IS NOT NULL`, wait.Milliseconds())
		locked := `FROM (SELECT name, owner, fence, expires FROM TABLE WHERE name = $1` + patient + ` OFFSET 0 FOR UPDATE) AS l WHERE k.name = l.name`
		for _, text := range []*string{&s.renew, &s.release, &s.takeAway, &s.due, &s.raise, &s.remove} {
			*text += patient
		}
		s.take = `UPDATE TABLE AS k SET owner = $2, fence = GREATEST(l.fence + 1, ` + floorOf + `), granted = NOW, expires = NOW + $3 ` + locked +
			` AND (l.owner = MARK OR l.expires <= NOW) AND NOW <= $4 AND l.fence < ` + maxFence + ` RETURNING k.fence, NOW`
		s.undo = `UPDATE TABLE AS k SET owner = MARK, expires = NOW ` + locked + ` AND l.owner = $2`
		for _, text := range []*string{&s.join, &s.edit, &s.settle, &s.close} {
			*text = strings.Replace(strings.Replace(*text, "AS l", "AS k", 1), `WHERE l.name = $1`,
				strings.Replace(locked, "name, owner, fence, expires", "*", 1), 1)
		}
		s.join = strings.Replace(s.join, "SELECT *", "SELECT *, "+strings.Replace(next, "l.", "", 1)+" AS next", 1) // once, because NOW passes
		s.join += ` RETURNING k.fence, NOW`
		s.grow += ` ON CONFLICT (name) DO NOTHING RETURNING fence, NOW`
		s.begin += ` ON CONFLICT (name) DO NOTHING`
		s.translate("ADDED", among+` || $2::bytea || convert_to(l.next::text, 'UTF8') || '|'::bytea`, "NEXT", "l.next",
			"REPLACED", `overlay(l.readers placing $3::bytea from position($2::bytea in l.readers) for length($2::bytea))`, "HAS", `position($2::bytea in l.readers) > 0`)
		s.translate("ONE_MARK", `(SELECT fence FROM TABLE WHERE name = MARK AND owner = `+d.literal([]byte(layout))+patient+` FOR SHARE) AS m`,
			"TOKEN", "", "BYTES", "encode",
			// Where the position of an argument does not show its type.
			"$5 = 0", "$5::bigint = 0", "SELECT $1, $2,", "SELECT $1::bytea, $2::bytea,")
	case SQLite:
		s.translate("ADDED", `CAST(`+among+` || $2 || NEXT || '|' AS BLOB)`, "REPLACED", `CAST(replace(l.readers, $2, $3) AS BLOB)`,
			"HAS", `instr(CAST(l.readers AS BLOB), $2) > 0`, "NEXT", next,
			// Somebody may have written a text, which is not equal to the same bytes.
			"l.owner", "CAST(l.owner AS BLOB)", "(owner = MARK", "(CAST(owner AS BLOB) = MARK", "owner > MARK", "CAST(owner AS BLOB) > MARK")
		s.take += ` RETURNING fence, NOW`
		s.join += ` RETURNING fence, NOW`
		s.grow += ` ON CONFLICT (name) DO NOTHING RETURNING fence, NOW`
		s.begin += ` ON CONFLICT (name) DO NOTHING`
		s.translate("ONE_MARK WHERE", `TABLE AS m WHERE m.name = MARK AND CAST(m.owner AS BLOB) = `+d.literal([]byte(layout))+` AND`,
			"TOKEN", "", "BYTES", "", ", 'hex'", "", "GREATEST", "max", "LEAST", "min", "$", "?")
	}
	// A key that is kept for a writer is free for it.
	s.takeKept = strings.Replace(s.take, "= MARK OR", "IN (MARK, KEPT) OR", 1)
	s.translate("READERS", d.literal([]byte(readersOwner)), "KEPT", d.literal([]byte(keptOwner)),
		"MARK", map[Dialect]string{MySQL: "''", Postgres: "''::bytea", SQLite: "x''"}[d], "NOW", map[Dialect]string{MySQL: nowMySQL, Postgres: nowPostgres, SQLite: nowSQLite}[d])
	s.translate("TABLE", d.quote(table)) // the last, because its name may contain any of these words
	return s
}

// translate replaces words in all statements, pair by pair.
func (s *statements) translate(pairs ...string) {
	for _, text := range []*string{
		&s.take, &s.look, &s.grow, &s.renew, &s.release, &s.undo, &s.takeAway,
		&s.begin, &s.due, &s.old, &s.raise, &s.remove, &s.list,
		&s.takeKept, &s.join, &s.edit, &s.settle, &s.close,
	} {
		for i := 0; i < len(pairs); i += 2 {
			*text = strings.ReplaceAll(*text, pairs[i], pairs[i+1])
		}
	}
}

// argument matches $1 in a statement of MySQL.
var argument = regexp.MustCompile(`\$\d+`)

// bind returns a statement and its arguments, each an int64 or a []byte, for the client.
// MySQL's clients prepare a statement with arguments, which costs another round trip each time,
// so for MySQL the arguments are in the text: numbers, and bytes in hexadecimal.
func (d Dialect) bind(text string, args []any) (string, []any) {
	if d != MySQL {
		return text, args
	}
	return argument.ReplaceAllStringFunc(text, func(s string) string {
		n, _ := strconv.Atoi(s[1:])
		return d.literal(args[n-1])
	}), nil
}

// literal returns an argument as SQL text.
func (d Dialect) literal(v any) string {
	switch v := v.(type) {
	case int64:
		return strconv.FormatInt(v, 10)
	case []byte:
		if d == Postgres {
			return `decode('` + hex.EncodeToString(v) + `', 'hex')`
		}
		return `x'` + hex.EncodeToString(v) + `'`
	}
	return "NULL"
}

// decode returns the bytes of BYTES(x). PostgreSQL would send bytes in one of two forms, as
// bytea_output says, and not all clients read both.
func (d Dialect) decode(sent []byte) ([]byte, error) {
	if d != Postgres || sent == nil {
		return sent, nil
	}
	b := make([]byte, hex.DecodedLen(len(sent)))
	_, err := hex.Decode(b, sent)
	return b, err
}

// placeholder returns the n-th argument's placeholder.
func (d Dialect) placeholder(n int) string {
	if d == SQLite {
		return "?" + strconv.Itoa(n)
	}
	return "$" + strconv.Itoa(n)
}

// quote quotes a table's name; a dot separates a schema from it.
func (d Dialect) quote(name string) string {
	q := `"`
	if d == MySQL {
		q = "`"
	}
	return q + strings.ReplaceAll(name, ".", q+"."+q) + q
}

// tableName matches the names that a table may have.
var tableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?$`)

// maxOwner is the greatest length of an owner, in bytes.
const maxOwner = 1024

// createTable makes the table if it is missing.
func (d Dialect) createTable(table string) string {
	columns := map[Dialect]string{
		MySQL:    `(name varbinary(512) NOT NULL PRIMARY KEY, owner varbinary(1024) NOT NULL, fence bigint NOT NULL, granted bigint NOT NULL, expires bigint NOT NULL, readers mediumblob) ENGINE=InnoDB`,
		Postgres: `(name bytea NOT NULL PRIMARY KEY, owner bytea NOT NULL, fence bigint NOT NULL, granted bigint NOT NULL, expires bigint NOT NULL, readers bytea) WITH (fillfactor = 70)`,
		SQLite:   `(name blob NOT NULL PRIMARY KEY, owner blob NOT NULL, fence integer NOT NULL, granted integer NOT NULL, expires integer NOT NULL, readers blob) WITHOUT ROWID`,
	}
	return "CREATE TABLE IF NOT EXISTS " + d.quote(table) + " " + columns[d]
}

// after returns the least name that is greater than all names that begin with prefix; empty if
// there is none.
func after(prefix string) []byte {
	for end := []byte(prefix); len(end) > 0; end = end[:len(end)-1] {
		if end[len(end)-1] < 0xff {
			end[len(end)-1]++
			return end
		}
	}
	return []byte{}
}
