package mysql_test

import (
	"bytes"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/sqltable/mysql"
)

// A server that is none ends no application, is not read into memory, and no connection to it stays.
func TestAServerThatIsNone(t *testing.T) {
	const most = 64 << 20
	for name, says := range map[string][]byte{
		"a first packet that is too short": append([]byte{1, 0, 0, 0}, 10),
		"a packet without an end":          append([]byte{255, 255, 255, 0}, make([]byte, 1<<24-1)...),
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			drivertest.Must(t, err)
			defer l.Close()
			sent := make(chan int, 100) // of each connection, until the client closed it
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						n := 0
						for packet := bytes.Clone(says); ; packet[3]++ {
							m, err := conn.Write(packet)
							if n += m; err != nil || n > most || len(packet) < 100 {
								break
							}
						}
						if n <= most {
							_, _ = conn.Read(make([]byte, 1)) // its end
						}
						_ = conn.Close()
						sent <- n
					}()
				}
			}()
			b, err := mysql.Driver{}.Open(&driver.Config{DSN: "mysql://user:secret@" + l.Addr().String() + "/db?call_timeout=2s"})
			drivertest.Must(t, err)
			defer b.Close()
			_, err = b.Acquire(t.Context(), drivertest.NewRequest("key", time.Minute))
			if err == nil || strings.Contains(err.Error(), "secret") {
				t.Errorf("Acquire: %v", err)
			}
			if n := <-sent; n > most {
				t.Errorf("the client read %d bytes", n)
			}
		})
	}
}
