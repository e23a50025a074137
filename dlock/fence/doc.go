/*
Package fence lets a store refuse the late write of a holder that lost its lock.

A lock cannot stop a process that was paused after it looked at its lease, nor a packet that
is on its way. The store can: every lease has a fencing token, larger than that of every lease
of the key before it, and a store that remembers the largest token that it has seen refuses a
smaller one. Kleppmann describes the scheme in "How to do distributed locking".

	err := dlock.Do(ctx, locks, "account/42", func(ctx context.Context) error {
		token, err := fence.Token(ctx, "account/42")
		if err != nil {
			return err
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := fence.Check(ctx, fence.Tx(tx, fence.Postgres, "fences"), "account/42", token); err != nil {
			return err // another owner has had the lock since
		}
		if _, err := tx.ExecContext(ctx, "UPDATE …"); err != nil {
			return err
		}
		return tx.Commit()
	})

# Which guard

  - [Tx]: a table of marks, one row for each resource, in the transaction of the write. It
    guards any number of rows and tables of one database. [Schema] makes the table.
  - A column of the row that is written, where one row is the resource, needs no help:
    UPDATE reports SET body = $1, fence = $2 WHERE name = $3 AND coalesce(fence, 0) <= $2
    changes no row if the token is stale.
  - [RedisScript]: the mark and the write in one script of Redis or Valkey.
  - package drivers/postgres has [Tx] for a pgx.Tx: FenceTx.
  - [Store]: one method, for every other store that compares and writes in one step: a
    conditional put, a compare-and-set on a version, a server of your own.

A resource is whatever one lock protects. All that write to it use the same lock key, the same
resource and the same guard: a write that goes around the guard is not refused. Tokens of
different keys cannot be compared.

# What is needed

The mark and the write must be one atomic step: a check before the write leaves between the
two exactly the gap that it is for. The store must keep its marks as well as its data: one that
forgets them accepts an old token again.
*/
package fence
