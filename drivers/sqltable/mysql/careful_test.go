package mysql_test

import (
	"bytes"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/sqltable/mysql"
)

// most is more than a client reads of an answer, with all that is under way.
const most = 64 << 20

// A server says the same to everybody, and long packets again and again.
type nonsense struct {
	net.Listener
	says     atomic.Pointer[[]byte]
	accepted atomic.Int64 // connections
	sent     chan int     // on a connection, until the client closed it
}

func (s *nonsense) serve() {
	for {
		conn, err := s.Accept()
		if err != nil {
			return
		}
		s.accepted.Add(1)
		go func() {
			n := 0
			for packet := bytes.Clone(*s.says.Load()); ; packet[3]++ {
				m, err := conn.Write(packet)
				if n += m; err != nil || n > most || len(packet) < 1000 {
					break
				}
			}
			for n <= most { // until its end
				if _, err := conn.Read(make([]byte, 1000)); err != nil {
					break
				}
			}
			_ = conn.Close()
			s.sent <- n
		}()
	}
}

// A server that is none ends no application, is not read into memory, and no connection to it stays.
func TestAServerThatIsNone(t *testing.T) {
	greeting := append(append([]byte("\x0a8.0\x00\x01\x00\x00\x00abcdefgh\x00\xff\xff\x21\x02\x00\xff\xff\x15"), make([]byte, 10)...), "ijklmnopqrst\x00mysql_native_password\x00"...)
	packet := func(sequence byte, body ...byte) []byte {
		return append([]byte{byte(len(body)), byte(len(body) >> 8), byte(len(body) >> 16), sequence}, body...)
	}
	greeted := func(more ...byte) []byte { return append(packet(0, greeting...), more...) }
	in := packet(2, 0, 0, 0, 2, 0, 0, 0) // the login succeeds
	streams := [][]byte{
		append([]byte{255, 255, 255, 0}, make([]byte, 1<<24-1)...), // a packet without an end
		{0xff, 0xff, 0xff, 0}, {0, 0, 0, 0}, packet(0, 0xff), packet(0, 0xff, 1, 1, '#'),
		greeted(packet(2, 0xfe, 'x', 0)...), greeted(packet(2, 0, 0xfc)...),
		greeted(append(in, packet(1, 0xfc)...)...), greeted(append(in, packet(1, 0, 0xfd, 1)...)...),
	}
	for n := range greeting {
		streams = append(streams, packet(0, greeting[:n]...))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	drivertest.Must(t, err)
	s := &nonsense{Listener: l, sent: make(chan int, 1000)}
	defer l.Close() //nolint:errcheck // the test is over
	go s.serve()
	for _, says := range streams {
		s.says.Store(&says)
		timeout := "50ms"
		if len(says) > 1000 {
			timeout = "2s"
		}
		b, err := mysql.Driver{}.Open(&driver.Config{DSN: "mysql://user:secret@" + l.Addr().String() + "/db?call_timeout=" + timeout})
		drivertest.Must(t, err)
		_, err = b.Acquire(t.Context(), drivertest.NewRequest("key", time.Minute))
		if err == nil || errors.Is(err, driver.ErrHeld) || strings.Contains(err.Error(), "secret") {
			t.Errorf("after %.100q: %v", says, err)
		}
		drivertest.Must(t, b.Close())
		for range s.accepted.Swap(0) {
			if n := <-s.sent; n > most {
				t.Errorf("the client read %d bytes", n)
			}
		}
	}
}
