package fault_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

const patience = time.Minute

// TestTheLostAnswerIsNoPush: a push of Redis passes, and the answer to SET is lost after SET has
// taken effect.
func TestTheLostAnswerIsNoPush(t *testing.T) {
	t.Parallel()
	s := server.Redis(t)
	p := fault.NewProxy(t, s.Addr())
	c, err := net.Dial("tcp", p.Addr())
	must(t, err)
	defer c.Close() //nolint:errcheck // it was cut
	must(t, c.SetDeadline(time.Now().Add(patience)))
	r := bufio.NewReader(c)
	until := func(text string) {
		t.Helper()
		for {
			line, err := r.ReadString('\n')
			must(t, err)
			if strings.Contains(line, text) {
				return
			}
		}
	}
	fmt.Fprint(c, "HELLO 3\r\nSUBSCRIBE news\r\nECHO subscribed\r\n")
	until("subscribed")
	p.Judge(fault.ToClient, fault.LoseAnswer(fault.ProtocolRESP, fault.Cut))
	_, err = s.Do("PUBLISH", "news", "an-item")
	must(t, err)
	until("an-item")
	fmt.Fprint(c, "PING\r\n")
	until("PONG")
	fmt.Fprint(c, "SET key value\r\n")
	if line, err := r.ReadString('\n'); err == nil {
		t.Errorf("the answer to SET arrives: %q", line)
	}
	if got, err := s.Do("GET", "key"); fmt.Sprint(got) != "value" || err != nil {
		t.Errorf("the request whose answer is lost had no effect: %v, %v", got, err)
	}
}

// TestTheLostAnswerIsNoNotification: a notification of PostgreSQL and the preparation of a statement
// pass, and the answer to INSERT is lost after INSERT has taken effect.
func TestTheLostAnswerIsNoNotification(t *testing.T) {
	t.Parallel()
	s := server.Postgres(t)
	p := fault.NewProxy(t, s.Addr())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	direct, err := sql.Open("pgx", s.URL())
	must(t, err)
	defer direct.Close() //nolint:errcheck // a test
	_, err = direct.ExecContext(ctx, "CREATE TABLE news (item text)")
	must(t, err)
	c, err := pgx.Connect(ctx, strings.Replace(s.URL(), s.Addr(), p.Addr(), 1))
	must(t, err)
	defer c.Close(ctx) //nolint:errcheck // it was cut
	_, err = c.Exec(ctx, "LISTEN news")
	must(t, err)
	p.Judge(fault.ToClient, fault.LoseAnswer(fault.ProtocolPostgres, fault.Cut))
	_, err = direct.ExecContext(ctx, "NOTIFY news")
	must(t, err)
	_, err = c.WaitForNotification(ctx)
	must(t, err)
	if _, err := c.Exec(ctx, "INSERT INTO news VALUES ($1)", "an item"); err == nil {
		t.Error("the answer to INSERT arrives")
	}
	var n int
	must(t, direct.QueryRowContext(ctx, "SELECT count(*) FROM news").Scan(&n))
	if n != 1 {
		t.Errorf("the request whose answer is lost took effect %d times", n)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
