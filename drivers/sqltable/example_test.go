package sqltable_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/drivers/sqltable"
	_ "github.com/redlock-go/redlock/drivers/sqltable/sqlite" // sqlite: URLs, and the client
)

// A program that has the database open makes the backend of that.
func ExampleNew() {
	dir, err := os.MkdirTemp("", "locks-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	db, err := sql.Open("sqlite", filepath.Join(dir, "app.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	backend, err := sqltable.New(db, sqltable.SQLite, &sqltable.Options{Table: "locks", Setup: true}) // or in a migration: SetupSQL
	if err != nil {
		log.Fatal(err)
	}
	locks, err := dlock.New(backend)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	lease, err := locks.Lock(context.Background(), "account/42")
	if err != nil {
		log.Fatal(err)
	}
	_, err = locks.TryLock(context.Background(), "account/42")
	fmt.Println(errors.Is(err, dlock.ErrHeld))
	fmt.Println(lease.Unlock())
	// Output:
	// true
	// <nil>
}

// The statement that makes the table, for a migration.
func ExampleBackend_SetupSQL() {
	db, err := sql.Open("sqlite", "unused.db")
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	for _, d := range []sqltable.Dialect{sqltable.MySQL, sqltable.Postgres, sqltable.SQLite} {
		backend, err := sqltable.New(db, d, nil)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(backend.SetupSQL(""))
	}
	// Output:
	// CREATE TABLE IF NOT EXISTS `dlock` (name varbinary(512) NOT NULL PRIMARY KEY, owner varbinary(1024) NOT NULL, fence bigint NOT NULL, granted bigint NOT NULL, expires bigint NOT NULL, readers mediumblob) ENGINE=InnoDB
	// CREATE TABLE IF NOT EXISTS "dlock" (name bytea NOT NULL PRIMARY KEY, owner bytea NOT NULL, fence bigint NOT NULL, granted bigint NOT NULL, expires bigint NOT NULL, readers bytea) WITH (fillfactor = 70)
	// CREATE TABLE IF NOT EXISTS "dlock" (name blob NOT NULL PRIMARY KEY, owner blob NOT NULL, fence integer NOT NULL, granted integer NOT NULL, expires integer NOT NULL, readers blob) WITHOUT ROWID
}
