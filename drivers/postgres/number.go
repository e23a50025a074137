package postgres

import "github.com/redlock-go/redlock/drivers/postgres/internal/advisory"

// Int64Key returns the key of the advisory lock with exactly this number, pg_advisory_lock(n),
// to share a lock with other programs. The prefix does not apply.
func Int64Key(n int64) string { return advisory.Int64Key(n) }

// Int32PairKey returns the key of the advisory lock with exactly these numbers,
// pg_advisory_lock(a, b): see Int64Key.
func Int32PairKey(a, b int32) string { return advisory.Int32PairKey(a, b) }

// LockID returns the number of key's advisory lock: the first eight bytes of the SHA-256 of
// prefix and key, big-endian, or the argument of Int64Key. For a key of Int32PairKey it is both
// numbers, the first in the upper half, and pair is true. In SQL:
//
//	SELECT ('x' || left(encode(sha256(convert_to(prefix || key, 'UTF8')), 'hex'), 16))::bit(64)::int8
func (b *Backend) LockID(key string) (id int64, pair bool) {
	n := advisory.NumberOf(b.opt.Prefix, key)
	return n.ID, n.Pair
}
