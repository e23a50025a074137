package postgres_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// A keyProxy behaves like the proxies of hosted databases: it gives every client a server
// process of its own, and makes cancel keys itself.
type keyProxy struct {
	addr    string
	cancels atomic.Int64 // requests to cancel, which it could not route
}

const cancelRequest = 80877102 // in the place of a protocol's version

func startKeyProxy(t *testing.T, target string) *keyProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &keyProxy{addr: l.Addr().String()}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.serve(c, target) })
		}
	})
	return p
}

func (p *keyProxy) serve(client net.Conn, target string) {
	defer client.Close() //nolint:errcheck // the test's own
	first := make([]byte, 8)
	if _, err := io.ReadFull(client, first); err != nil {
		return
	}
	if binary.BigEndian.Uint32(first[4:]) == cancelRequest {
		p.cancels.Add(1)
		return
	}
	up, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer up.Close() //nolint:errcheck // the test's own
	if _, err := up.Write(first); err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(up, client)
		_ = up.Close()
	}()
	in := bufio.NewReader(up)
	for head := make([]byte, 5); ; {
		if _, err := io.ReadFull(in, head); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(in, body); err != nil {
			return
		}
		if head[0] == 'K' {
			binary.BigEndian.PutUint32(body, 4711)
		}
		if _, err := client.Write(append(head[:5:5], body...)); err != nil {
			return
		}
	}
}

func TestAProxyThatMakesItsOwnCancelKeysServesWithPoolerSession(t *testing.T) {
	t.Parallel()
	s := database(t)
	p := startKeyProxy(t, s.Addr())
	url := strings.Replace(s.URL(), s.Addr(), p.addr, 1)
	refused(t, opener(t, url), "pooler=session")
	b, direct := opener(t, url+"&pooler=session"), opener(t, s.URL())
	l := must(t, b, request("k", time.Hour))
	if _, err := renew(l, time.Hour); err != nil {
		t.Error(err)
	}
	if _, _, err := answer(context.Background(), direct, request("k", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("held through the proxy, and yet: %v", err)
	}
	if err := release(l); err != nil {
		t.Error(err)
	}
	l = must(t, direct, request("k", time.Hour))
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	r := request("k", time.Minute)
	r.Wait = true
	if _, err := b.Acquire(ctx, r); verdict(err) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait that its context ends: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		l, err := awaited(context.Background(), b, request("k", time.Minute))
		if err == nil {
			err = release(l)
		}
		got <- err
	}()
	db := admin(t, s.URL())
	eventually(t, "it waits", func() bool { return count(t, db, advisory+" AND NOT granted") > 0 })
	if err := release(l); err != nil {
		t.Error(err)
	}
	if err := <-got; err != nil {
		t.Errorf("a wait through the proxy: %v", err)
	}
	if n := p.cancels.Load(); n != 0 {
		t.Errorf("%d requests to cancel, which such a proxy may not be able to route", n)
	}
	_ = b.Close()
	eventually(t, "the server has forgotten it", func() bool { return count(t, db, anyAdvisory) == 0 })
}

// startTLSProxy is a server with TLS, which passes everything on to a server without, and returns its
// address.
func startTLSProxy(t *testing.T, target string) string {
	t.Helper()
	certified := httptest.NewTLSServer(nil) // for its certificate
	t.Cleanup(certified.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()                                            //nolint:errcheck // the test's own
				if _, err := io.ReadFull(c, make([]byte, 8)); err != nil { // the request for TLS
					return
				}
				_, _ = c.Write([]byte("S"))
				client := tls.Server(c, &tls.Config{Certificates: certified.TLS.Certificates})
				up, err := net.Dial("tcp", target)
				if err != nil {
					return
				}
				defer up.Close() //nolint:errcheck // the test's own
				go func() { _, _ = io.Copy(up, client); _ = up.Close() }()
				_, _ = io.Copy(client, up)
			})
		}
	})
	return l.Addr().String()
}

// A caller that reads the answers gives up at any moment, and the next one reads on.
func TestCallersThatGiveUpEndNoConnection(t *testing.T) {
	t.Parallel()
	s := database(t)
	for name, url := range map[string]string{
		"without TLS": s.URL(),
		"with TLS":    strings.Replace(strings.Replace(s.URL(), s.Addr(), startTLSProxy(t, s.Addr()), 1), "sslmode=disable", "sslmode=require", 1),
	} {
		other, b := opener(t, s.URL()), opener(t, url)
		held := must(t, other, request("held", time.Hour))
		mine := must(t, b, request("mine", time.Hour))
		for i := range 200 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*10*time.Microsecond)
			r := request(fmt.Sprint("free", i), time.Hour)
			if i%20 == 0 {
				r.Key, r.Wait = "held", true
			}
			if l, err := b.Acquire(ctx, r); err == nil {
				_, _ = l.Renew(ctx, &driver.Renewal{TTL: time.Hour})
				if err := l.Release(ctx); err != nil {
					t.Errorf("%s: Release: %v", name, err)
				}
			} else if verdict(err) && !errors.Is(err, driver.ErrHeld) {
				t.Errorf("%s: %v", name, err)
			}
			cancel()
		}
		if _, err := renew(mine, time.Hour); err != nil {
			t.Errorf("%s: a lease of the same connection: %v", name, err)
		}
		if err := release(mine); err != nil {
			t.Errorf("%s: its Release: %v", name, err)
		}
		if err := release(held); err != nil {
			t.Error(err)
		}
		db := admin(t, s.URL())
		eventually(t, "no lock is left", func() bool { return count(t, db, advisory) == 0 })
		if n := b.Conns(); n > 20 {
			t.Errorf("%s: %d connections", name, n)
		}
	}
}
