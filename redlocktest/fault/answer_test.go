package fault_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
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

// TestTheLostAnswerIsNoLogin: a connection's greeting and login pass, so does an error, and the answer
// to INSERT is lost after INSERT has taken effect.
func TestTheLostAnswerIsNoLogin(t *testing.T) {
	t.Parallel()
	s := server.MariaDB(t)
	p := fault.NewProxy(t, s.Addr())
	p.Judge(fault.ToClient, fault.LoseAnswer(fault.ProtocolMySQL, fault.Cut))
	through, direct := openMySQL(t, p.Addr()), openMySQL(t, s.Addr())
	if got := direct.ask(t, "CREATE TABLE test.news (item int)"); got[4] != 0 {
		t.Fatalf("CREATE TABLE: %q", got)
	}
	if got := through.ask(t, "nonsense"); got[4] != 0xff {
		t.Errorf("the answer to nonsense is no error: %q", got)
	}
	through.send(t, 0, "\x03INSERT INTO test.news VALUES (1)")
	if got, err := through.receive(); err == nil {
		t.Errorf("the answer to INSERT arrives: %q", got)
	}
	// It has one row, or else the answer is that none were changed.
	if got := direct.ask(t, "DELETE FROM test.news"); string(got[4:6]) != "\x00\x01" {
		t.Errorf("the request whose answer is lost had no effect: %q", got)
	}
}

// A mysqlConn is a connection to MariaDB, as the superuser.
type mysqlConn struct {
	net.Conn
	r *bufio.Reader
}

func openMySQL(t *testing.T, addr string) *mysqlConn {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { _ = nc.Close() })
	must(t, nc.SetDeadline(time.Now().Add(patience)))
	c := &mysqlConn{nc, bufio.NewReader(nc)}
	_, err = c.receive() // the greeting
	must(t, err)
	const protocol41, secureConnection, pluginAuth = 1 << 9, 1 << 15, 1 << 19
	login := binary.LittleEndian.AppendUint32(nil, protocol41|secureConnection|pluginAuth)
	login = binary.LittleEndian.AppendUint32(login, 1<<24)
	login = append(login, 45) // utf8mb4
	login = append(login, make([]byte, 23)...)
	c.send(t, 1, string(login)+server.MariaDBSuperuser+"\x00\x00mysql_native_password\x00")
	if got, err := c.receive(); err != nil || got[4] != 0 {
		t.Fatalf("login: %q, %v", got, err)
	}
	return c
}

// ask returns the first message of the answer to a statement.
func (c *mysqlConn) ask(t *testing.T, statement string) []byte {
	t.Helper()
	c.send(t, 0, "\x03"+statement)
	m, err := c.receive()
	must(t, err)
	return m
}

func (c *mysqlConn) send(t *testing.T, number byte, payload string) {
	t.Helper()
	n := len(payload)
	_, err := c.Write(append([]byte{byte(n), byte(n >> 8), byte(n >> 16), number}, payload...))
	must(t, err)
}

func (c *mysqlConn) receive() ([]byte, error) {
	m := make([]byte, 4)
	if _, err := io.ReadFull(c.r, m); err != nil {
		return nil, err
	}
	m = append(m, make([]byte, int(m[0])+int(m[1])<<8+int(m[2])<<16)...)
	_, err := io.ReadFull(c.r, m[4:])
	return m, err
}

// TestOnlyAnswersToEffectiveRequestsAreLost: messages that say nothing of an effect pass, and the
// next answer is lost, however the bytes arrive.
func TestOnlyAnswersToEffectiveRequestsAreLost(t *testing.T) {
	const headers, data, endStream, endHeaders = "\x01", "\x00", "\x01", "\x04"
	frame := func(kind, flags string) string { return "\x00\x00\x01" + kind + flags + "\x00\x00\x00\x01x" }
	for name, of := range map[string]struct {
		protocol fault.Protocol
		pass     string
		answer   string
	}{
		"RESP: an error":               {fault.ProtocolRESP, "-NOSCRIPT No matching script.\r\n", ":1\r\n"},
		"RESP: a long error":           {fault.ProtocolRESP, "!8\r\nLOADING \r\n", ":1\r\n"},
		"HTTP2: the end of a response": {fault.ProtocolHTTP2, frame(data, "\x00") + frame(headers, "\x05"), frame(headers, endHeaders)},
		"HTTP2: a response of an end":  {fault.ProtocolHTTP2, frame(headers, endStream) + frame(data, "\x00"), frame(headers, "\x00")},
		"MySQL: a login":               {fault.ProtocolMySQL, "\x01\x00\x00\x00\x0a\x07\x00\x00\x02\x00\x00\x00\x02\x00\x00\x00", "\x01\x00\x00\x01\x01"},
		"MySQL: rows":                  {fault.ProtocolMySQL, "\x01\x00\x00\x04x\x05\x00\x00\x05\xfe\x00\x00#\x00", "\x01\x00\x00\x01\x01"},
		"MySQL: an error":              {fault.ProtocolMySQL, "\x09\x00\x00\x01\xff\x28\x04#42000", "\x07\x00\x00\x01\x00\x01\x00\x02\x00\x00\x00"},
		"MySQL: a preparation": {fault.ProtocolMySQL, "\x0c\x00\x00\x01\x00\x01\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00",
			"\x07\x00\x00\x01\x00\x01\x00\x02\x00\x00\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			all := []byte(of.pass + of.answer)
			for size := 1; size <= len(all); size++ {
				judge, passed := fault.LoseAnswer(of.protocol, fault.Cut), 0
				for chunk := range slices.Chunk(all, size) {
					n, then := judge(1, chunk)
					if passed += n; then == fault.Cut {
						break
					}
				}
				if passed < len(of.pass) || passed == len(all) {
					t.Errorf("in chunks of %d: %d bytes pass, of %d before the answer and %d in all", size, passed, len(of.pass), len(all))
				}
			}
		})
	}
}

// TestAnAnswerIsLostAfterTheRestOfALongMessage: a judge that begins in the middle of a message takes
// its rest for the beginning of a message that may never end. It begins anew after a bounded size.
func TestAnAnswerIsLostAfterTheRestOfALongMessage(t *testing.T) {
	for name, of := range map[string]struct {
		protocol     fault.Protocol
		rest, answer string
	}{
		"RESP":     {fault.ProtocolRESP, "*999999999\r\n", ":1\r\n"},
		"HTTP2":    {fault.ProtocolHTTP2, "\xff\xff\xff\x01\x04", "\x00\x00\x01\x01\x04\x00\x00\x00\x01x"},
		"Postgres": {fault.ProtocolPostgres, "C\x7f\xff\xff\xff", "C\x00\x00\x00\x0dINSERT 0\x00"},
		"MySQL":    {fault.ProtocolMySQL, "\xff\xff\xff\x01\x00", "\x01\x00\x00\x01\x01"},
	} {
		judge := fault.LoseAnswer(of.protocol, fault.Cut)
		judge(1, []byte(of.rest))
		passed, then := 0, fault.Pass
		for then == fault.Pass && passed < 64<<10 {
			var n int
			n, then = judge(1, []byte(of.answer))
			passed += n
		}
		if then != fault.Cut {
			t.Errorf("%s: no answer is lost in %d bytes", name, passed)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
