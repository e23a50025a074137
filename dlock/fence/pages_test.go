package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/fence"
)

// This file has the code of the documentation's pages, so that it compiles.
var (
	_ = []any{follow, save, stop, degrade, open}

	block = regexp.MustCompile("(?s)```go\n(.*?)```")
)

const docs = "../../.github/docs"

// TestThePagesCodeCompiles finds the code of every page in a file that is compiled: this one,
// or one of a nested module, which imports other libraries.
func TestThePagesCodeCompiles(t *testing.T) {
	compiled := flat(t, "pages_test.go") + flat(t, "../../benchmark/pages_test.go") + flat(t, "../../dlock/gocronlock/gocronlock_test.go")
	pages, err := filepath.Glob(docs + "/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	blocks := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range block.FindAllSubmatch(text, -1) {
			blocks++
			for function := range strings.SplitSeq(string(m[1]), "\n\nfunc ") {
				if !strings.Contains(compiled, plain(strings.TrimPrefix(function, "func "))) {
					t.Errorf("%s: this is compiled nowhere:\n%s", page, function)
				}
			}
		}
	}
	if blocks < 10 {
		t.Errorf("%d blocks of code were found", blocks)
	}
}

// TestTheLateWriteIsRefused runs the guards of the page on correctness.
func TestTheLateWriteIsRefused(t *testing.T) {
	db := database
	for _, statement := range []string{
		fence.Schema(fence.Postgres, "fences"),
		"CREATE TABLE accounts (id int, balance int, fence bigint NOT NULL DEFAULT 0)", "INSERT INTO accounts VALUES (42, 10)",
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	for name, write := range map[string]func(context.Context, *sql.DB, uint64) error{"single": single, "guarded": guarded} {
		for _, token := range []uint64{1, 2, 2} {
			if err := write(t.Context(), db, token); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := write(t.Context(), db, 1); !errors.Is(err, fence.ErrStale) {
			t.Errorf("%s: the late write: %v", name, err)
		}
	}
	var balance int
	if err := db.QueryRowContext(t.Context(), "SELECT balance FROM accounts").Scan(&balance); err != nil || balance != 4 {
		t.Errorf("the balance is %d, %v", balance, err)
	}
}

// plain removes the formatting and the linter's directives.
func plain(code string) string {
	var lines []string
	for line := range strings.SplitSeq(code, "\n") {
		line, _, _ = strings.Cut(line, " //nolint")
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

func flat(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return plain(string(text))
}

func run(ctx context.Context) error { return ctx.Err() }

func follow(ctx context.Context, locks *dlock.Client) {
	for ; ctx.Err() == nil; time.Sleep(time.Second) {
		state, err := locks.Lookup(ctx, "scheduler")
		if err != nil {
			log.Print(err)
		} else if len(state.Holders) > 0 {
			log.Printf("led by %q", state.Holders[0].Owner) // the label of WithOwnerLabel comes first
		}
	}
}

func save(ctx context.Context, locks dlock.Locker, db *sql.DB) error {
	return dlock.Do(ctx, locks, "account/42", func(ctx context.Context) error {
		return write(ctx, db)
	})
}

func write(ctx context.Context, db *sql.DB) error {
	token, err := fence.Token(ctx, "account/42")
	if err != nil {
		return err // ctx has no lease of this key, or the lease has ended
	}
	return guarded(ctx, db, token)
}

func single(ctx context.Context, db *sql.DB, token uint64) error {
	done, err := db.ExecContext(ctx, "UPDATE accounts SET balance = balance - 1, fence = $1 WHERE id = 42 AND fence <= $1", token)
	if err != nil {
		return err
	}
	if n, err := done.RowsAffected(); err != nil || n == 0 {
		return errors.Join(fence.ErrStale, err) // stop, another has the lock
	}
	return nil
}

func guarded(ctx context.Context, db *sql.DB, token uint64) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // an example
	if err := fence.Check(ctx, fence.Tx(tx, fence.Postgres, "fences"), "account/42", token); err != nil {
		return err // errors.Is(err, fence.ErrStale): stop, another has the lock
	}
	if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 1 WHERE id = 42"); err != nil {
		return err
	}
	return tx.Commit()
}

func stop(ctx context.Context, locks dlock.Locker) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // for the wait
	defer cancel()
	lease, err := locks.Lock(ctx, "nightly")
	if err != nil {
		return err // ErrHeld or ErrUnavailable: not now
	}
	defer lease.Unlock() //nolint:errcheck // an example
	work, done := lease.Context(context.WithoutCancel(ctx))
	defer done()
	return run(work)
}

func degrade(ctx context.Context, locks dlock.Locker) error {
	lease, err := locks.TryLock(ctx, "refresh-cache")
	switch {
	case errors.Is(err, dlock.ErrHeld):
		return nil // another does it
	case errors.Is(err, dlock.ErrUnavailable):
		log.Print("refresh-cache runs without a lock: ", err)
		return run(ctx)
	case err != nil:
		return err
	}
	defer lease.Unlock() //nolint:errcheck // an example
	work, done := lease.Context(ctx)
	defer done()
	return run(work)
}

func open(oldURL, newURL string) (*dlock.Client, error) {
	if newURL == "" {
		return dlock.OpenURL(oldURL) // step 1; and step 3, with the new URL as the only one
	}
	return dlock.OpenURL("both:" + oldURL + " " + newURL) // step 2
}
