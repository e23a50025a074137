package postgres_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/postgres"
)

// greet reports these parameters to a client, and fails all its statements.
func greet(c net.Conn, parameters ...pgproto3.ParameterStatus) {
	b := pgproto3.NewBackend(c, c)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return
	}
	b.Send(&pgproto3.AuthenticationOk{})
	for _, p := range parameters {
		b.Send(&p)
	}
	b.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte("1234")})
	for {
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if b.Flush() != nil {
			return
		}
		if _, err := b.Receive(); err != nil {
			return
		}
		b.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "0A000", Message: "not supported"})
	}
}

// Its functions for advisory locks answer and lock nothing.
func TestCockroachDBIsRefusedByName(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(c net.Conn) {
		greet(c, pgproto3.ParameterStatus{Name: "server_version", Value: "15.0.0"},
			pgproto3.ParameterStatus{Name: "crdb_version", Value: "CockroachDB CCL v25.1.0"})
	})
	b := opener(t, "postgres://root@"+addr+"/defaultdb?sslmode=disable")
	refused(t, b, "CockroachDB")
	if d := drivertest.AwaitFinding(t, b, "refused"); d.Severity != driver.SeverityUnsafe || !strings.Contains(d.Summary, "CockroachDB") {
		t.Errorf("Check: %+v", d)
	}
}

func TestAnErrorOfDialingSaysEachFactOnce(t *testing.T) {
	t.Parallel()
	for url, once := range map[string]string{
		"postgres://u:" + canary + "@127.0.0.1:1/db":  "127.0.0.1:1", // first with TLS, then without
		"postgres://u@127.0.0.1:1/db?sslmode=disable": "refused",
		"postgres://u:pw@nowhere.invalid/db":          "nowhere.invalid",
		"postgres://u@/db?host=/nowhere":              "/nowhere/",
	} {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		_, err := opener(t, url).Acquire(ctx, request("k", time.Minute))
		cancel()
		if text := err.Error(); strings.Count(text, once) != 1 || strings.Contains(text, "\n") || strings.Contains(text, canary) {
			t.Errorf("%s: %v", url, err)
		}
		var op net.Error
		if !errors.As(err, &op) {
			t.Errorf("%s: the error does not wrap its cause: %v", url, err)
		}
	}
}

const canary = "s3cr3t-c4n4ry"

// pgx tries without TLS if the handshake fails, and then sends the password to whom asks for it.
func TestAPasswordThatMayGoInClearIsAnnounced(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]int{
		"postgres://u:" + canary + "@db.invalid/db":                 1,
		"postgres://u:" + canary + "@127.0.0.1:1,db.invalid/db":     1,
		"postgres://u@db.invalid/db":                                0, // it has no password
		"postgres://u:" + canary + "@127.0.0.1:1/db":                0,
		"postgres://u:" + canary + "@localhost:1/db":                0,
		"postgres://u:" + canary + "@/db?host=/nowhere":             0,
		"postgres://u:" + canary + "@db.invalid/db?sslmode=prefer":  0, // a choice; Check names it
		"postgres://u:" + canary + "@db.invalid/db?sslmode=require": 0,
	} {
		var notices drivertest.NoticeLog
		b, err := new(postgres.Driver).Open(&driver.Config{DSN: url, Notify: notices.Add})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // once is enough
			_, _ = b.Acquire(context.Background(), request("k", time.Minute))
		}
		_ = b.Close()
		all := notices.All()
		if len(all) != want || want > 0 && !strings.Contains(all[0].Detail, "sslmode") || want > 0 && strings.Contains(all[0].Detail, canary) {
			t.Errorf("%s: notices %+v, want %d", url, all, want)
		}
	}
}

func TestCheckWarnsOfAPasswordInClear(t *testing.T) {
	t.Parallel()
	cfg, err := pgx.ParseConfig(database(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	cfg.Password, cfg.LookupFunc = canary, func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
	for host, want := range map[string]bool{"localhost": false, "db.example": true} {
		via := cfg.Copy()
		via.Host = host
		findings, err := built(t, func(ctx context.Context) (*pgx.Conn, error) { return pgx.ConnectConfig(ctx, via.Copy()) }, nil).Check(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		found := slices.ContainsFunc(findings, func(d driver.Diagnostic) bool {
			return d.Code == "password-in-clear" && d.Severity == driver.SeverityWarning && strings.Contains(d.Remedy, "sslmode")
		})
		if found != want {
			t.Errorf("%s: %+v", host, findings)
		}
	}
}

// A server that is not what it seems announces a message of two gigabytes. Room for it is not made.
func TestAMessageOfGigabytesIsRefused(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(c net.Conn) { _, _ = c.Write([]byte{'R', 0x7f, 0xff, 0xff, 0xff, 0}) })
	b := opener(t, "postgres://root@"+addr+"/db?sslmode=disable")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := b.Acquire(ctx, request("k", time.Minute)); err == nil || ctx.Err() != nil {
		t.Errorf("Acquire gives %v", err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 1<<30 { // other tests run beside this one
		t.Errorf("%d bytes were allocated", grown)
	}
}
