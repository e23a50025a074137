package sqltable_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/redlocktest/fault"
)

// TestTheLostAnswerIsThatOfTheInsert: the answer is lost after INSERT has taken effect.
func TestTheLostAnswerIsThatOfTheInsert(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	m := places["mariadb"](t)
	p := fault.NewProxy(t, m.server.Addr())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	open := func(dsn string) *sql.DB {
		db, err := sql.Open(m.dsn[0], dsn)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		if err := db.PingContext(ctx); err != nil {
			t.Fatal(err)
		}
		return db
	}
	direct, through := open(m.dsn[1]), open(strings.Replace(m.dsn[1], m.server.Addr(), p.Addr(), 1))
	if _, err := direct.ExecContext(ctx, "CREATE TABLE news (item int)"); err != nil {
		t.Fatal(err)
	}
	p.Judge(fault.ToClient, fault.LoseAnswer(fault.ProtocolMySQL, fault.Cut))
	if _, err := through.ExecContext(ctx, "INSERT INTO news VALUES (1)"); err == nil {
		t.Error("the answer to INSERT arrives")
	}
	var n int
	if err := direct.QueryRowContext(ctx, "SELECT count(*) FROM news").Scan(&n); err != nil || n != 1 {
		t.Errorf("the request whose answer is lost took effect %d times, %v", n, err)
	}
}
