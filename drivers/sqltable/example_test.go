package sqltable_test

import (
	"context"
	"database/sql"
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
	fmt.Println(lease.Unlock())
	// Output: <nil>
}
