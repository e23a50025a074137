package fault

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	// goleak waits for less than half a second, in which a goroutine may not end on a busy
	// machine.
	for end := time.Now().Add(20 * time.Second); code == 0; {
		err := goleak.Find()
		if err == nil {
			break
		}
		if time.Now().After(end) {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// patience bounds the wait for an event that must happen; brief is how long a test waits to see
// that an event does not happen.
const (
	patience = 20 * time.Second
	brief    = 50 * time.Millisecond
)

// An echo is a server that answers every line with the same line, and counts the lines.
type echo struct {
	addr string
	got  chan string // every line that took effect
	ends chan error  // how connections ended; nil: orderly
}

func newEcho(t *testing.T) *echo {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	e := &echo{addr: l.Addr().String(), got: make(chan string, 1000), ends: make(chan error, 100)}
	var all sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			all.Go(func() { e.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return e
}

func (e *echo) serve(c net.Conn) {
	defer c.Close() //nolint:errcheck // the connection ends either way
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			select {
			case e.ends <- err:
			default:
			}
			return
		}
		select {
		case e.got <- strings.TrimSpace(line):
		default: // nobody reads the count
		}
		_, _ = io.WriteString(c, line)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A client is a connection through a proxy.
type client struct {
	net.Conn
	r *bufio.Reader
}

// dial connects to the proxy and returns once it has accepted the connection: on a busy machine
// that may be long after the kernel did, and then a fault that ends before has no effect on it.
func dial(t *testing.T, p *Proxy) *client {
	t.Helper()
	accepted := p.Stats().Conns
	c, err := net.Dial("tcp", p.Addr())
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	for end := time.Now().Add(patience); p.Stats().Conns == accepted; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the proxy does not accept the connection")
		}
	}
	return &client{c, bufio.NewReader(c)}
}

// ask sends a line and returns the answer.
func (c *client) ask(line string, within time.Duration) (string, error) {
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return "", err
	}
	return c.line()
}

func (c *client) line() (string, error) {
	answer, err := c.r.ReadString('\n')
	return strings.TrimSpace(answer), err
}

// answered fails the test unless the proxy forwards both ways on this connection.
func answered(t *testing.T, c *client, e *echo) {
	t.Helper()
	line := t.Name()
	if got, err := c.ask(line, patience); got != line || err != nil {
		t.Fatalf("the answer is %q, %v", got, err)
	}
	if got := <-e.got; got != line {
		t.Fatalf("the server got %q", got)
	}
}

// silent sends a line on this connection, and fails the test if an answer comes.
func silent(t *testing.T, c *client) {
	t.Helper()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	_, err := io.WriteString(c, "into the void\n")
	must(t, err)
	must(t, c.SetReadDeadline(time.Now().Add(brief)))
	if got, err := c.line(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the answer is %q, %v; want none", got, err)
	}
}

// awaitMute returns once the proxy has muted a connection in this direction.
func awaitMute(t *testing.T, p *Proxy, d Direction) {
	t.Helper()
	mute := func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for l := range p.links {
			if l.muted[d].Load() {
				return true
			}
		}
		return false
	}
	for end := time.Now().Add(patience); !mute(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no connection is muted %v", d)
		}
	}
}

// isCut fails the test unless the connection is reset.
func isCut(t *testing.T, c *client) {
	t.Helper()
	must(t, c.SetDeadline(time.Now().Add(patience)))
	_, err := io.Copy(io.Discard, c.r)
	if !errors.Is(err, syscall.ECONNRESET) && runtime.GOOS != "windows" {
		t.Fatalf("the connection ended with %v, want a reset", err)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the connection is still open")
	}
}

func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-from:
		return v
	case <-timer.C:
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// through makes a server, and a proxy in front of it.
func through(t *testing.T) (*echo, *Proxy) {
	e := newEcho(t)
	return e, NewProxy(t, e.addr)
}

func TestForwardsAndCounts(t *testing.T) {
	_, p := through(t)
	var all sync.WaitGroup
	for i := range 8 {
		c := dial(t, p)
		all.Go(func() {
			for j := range 50 {
				line := fmt.Sprintf("%d/%d", i, j)
				if got, err := c.ask(line, patience); got != line || err != nil {
					t.Errorf("%q, %v", got, err)
					return
				}
			}
		})
	}
	all.Wait()
	s := p.Stats()
	if want := int64(8 * (10*4 + 40*5)); s.Conns != 8 || s.Open != 8 || s.ToServer != want || s.ToClient != want {
		t.Errorf("%+v, want 8 connections and %d bytes", s, want)
	}
}

func TestAnOrderlyEndArrivesAfterAllBytes(t *testing.T) {
	e, p := through(t)
	p.Delay(ToServer, 10*time.Millisecond, 0)
	c := dial(t, p)
	_, err := io.WriteString(c, "last\n")
	must(t, err)
	must(t, c.Conn.(interface{ CloseWrite() error }).CloseWrite())
	if got := receive(t, e.got, "the line"); got != "last" {
		t.Errorf("the server got %q", got)
	}
	if err := receive(t, e.ends, "the end"); err != nil {
		t.Errorf("the server saw %v, want an orderly end", err)
	}
	if got, err := c.line(); got != "last" || err != nil {
		t.Errorf("after its end the client gets %q, %v", got, err)
	}
}

func TestDelaysAreSplitBetweenTheDirectionsAndNeverTooShort(t *testing.T) {
	e, p := through(t)
	c := dial(t, p)
	answered(t, c, e)
	p.RTT(2 * time.Millisecond)
	var took []time.Duration
	for range 100 {
		start := time.Now()
		answered(t, c, e)
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	if took[0] < 2*time.Millisecond {
		t.Errorf("an answer came after %v, before the round trip of 2 ms", took[0])
	}
	t.Logf("a round trip of 2 ms took %v at least, %v in the median, %v at p95", took[0], took[50], took[95])
	p.Delay(ToServer, 20*time.Millisecond, 0)
	p.Delay(ToClient, 0, 0)
	start := time.Now()
	must(t, c.SetDeadline(start.Add(patience)))
	_, err := io.WriteString(c, "one way\n")
	must(t, err)
	receive(t, e.got, "the line")
	if d := time.Since(start); d < 20*time.Millisecond {
		t.Errorf("the request arrived after %v, before its 20 ms", d)
	}
	_, err = c.line()
	must(t, err)
}

func TestABlackHoleAnswersNobodyAndRestoreCutsThem(t *testing.T) {
	e, p := through(t)
	old := dial(t, p)
	answered(t, old, e)
	p.BlackHole()
	silent(t, old)
	fresh := dial(t, p)
	silent(t, fresh)
	must(t, p.Restore())
	isCut(t, old)
	isCut(t, fresh)
	if len(e.got) != 0 {
		t.Errorf("the server got %q", <-e.got)
	}
	answered(t, dial(t, p), e)
}

func TestRefuseCutsAndRefusesUntilRestoreOnTheSameAddress(t *testing.T) {
	e, p := through(t)
	c, addr := dial(t, p), p.Addr()
	answered(t, c, e)
	must(t, p.Refuse())
	must(t, p.Refuse())
	isCut(t, c)
	if c, err := net.Dial("tcp", p.Addr()); err == nil {
		must(t, c.Close())
		t.Error("a connection was accepted")
	}
	must(t, p.Restore())
	if p.Addr() != addr {
		t.Errorf("the address changed from %s to %s", addr, p.Addr())
	}
	answered(t, dial(t, p), e)
}

func TestPauseHoldsEverythingBackAndResumeDeliversIt(t *testing.T) {
	e, p := through(t)
	old := dial(t, p)
	answered(t, old, e)
	p.Pause()
	silent(t, old)
	fresh := dial(t, p)
	silent(t, fresh)
	if len(e.got) != 0 {
		t.Errorf("the server got %q", <-e.got)
	}
	p.Resume()
	for _, c := range []*client{old, fresh} {
		must(t, c.SetDeadline(time.Now().Add(patience)))
		if got, err := c.line(); got != "into the void" || err != nil {
			t.Errorf("after Resume: %q, %v", got, err)
		}
	}
}

func TestADroppedReplyComesAfterTheEffectAndMutesItsConnection(t *testing.T) {
	e, p := through(t)
	hit, other := dial(t, p), dial(t, p)
	p.Judge(ToClient, Lose(1, Mute))
	silent(t, hit)
	if got := receive(t, e.got, "the request"); got != "into the void" {
		t.Errorf("the server got %q", got)
	}
	awaitMute(t, p, ToClient) // the reply may still be in transit
	// A later reply would count as the lost one.
	silent(t, hit)
	receive(t, e.got, "the second request")
	answered(t, other, e)
	must(t, p.Restore())
	isCut(t, hit)
	answered(t, other, e)
}

// TestAJudgeStopsInTheMiddle of a message, and does to the connection what it says.
func TestAJudgeStopsInTheMiddle(t *testing.T) {
	for then, ends := range map[Action]func(c *client){
		Mute: func(c *client) { silent(t, c) },
		Cut:  func(c *client) { isCut(t, c) },
		End: func(c *client) {
			if got, err := io.ReadAll(c.r); len(got) != 0 || err != nil {
				t.Errorf("the client got %q, %v: not the end in order", got, err)
			}
		},
	} {
		_, p := through(t)
		c := dial(t, p)
		p.Judge(ToClient, AfterBytes(7, then))
		must(t, c.SetDeadline(time.Now().Add(patience)))
		_, err := io.WriteString(c, "abc\ndef\nghi\n")
		must(t, err)
		got := make([]byte, 7)
		if _, err = io.ReadFull(c.r, got); then != Cut { // a reset may overtake the bytes
			must(t, err)
			if string(got) != "abc\ndef" {
				t.Errorf("the client got %q", got)
			}
		}
		ends(c)
		if got, err := dial(t, p).ask("more", patience); got != "more" || err != nil {
			t.Errorf("another connection gets %q, %v", got, err)
		}
	}
}

func TestHalfOpenLeavesOneSideUnaware(t *testing.T) {
	e, p := through(t)
	c := dial(t, p)
	answered(t, c, e)
	p.HalfOpen(ToServer)
	if err := receive(t, e.ends, "the server to see its client go"); err != nil {
		t.Errorf("the server saw %v, want an orderly end", err)
	}
	silent(t, c)

	c = dial(t, p)
	answered(t, c, e)
	p.HalfOpen(ToClient)
	must(t, c.SetDeadline(time.Now().Add(patience)))
	if _, err := c.line(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the client sees %v", err)
	}
	select {
	case err := <-e.ends:
		t.Errorf("the server has seen its client go: %v", err)
	case <-time.After(brief):
	}
	answered(t, dial(t, p), e)
}

// The leak check after all tests completes this test.
func TestCloseEndsEverythingWhateverTheFault(t *testing.T) {
	for name, spoil := range map[string]func(p *Proxy){
		"none":       func(*Proxy) {},
		"delay":      func(p *Proxy) { p.Delay(ToServer, time.Hour, 0) },
		"pause":      func(p *Proxy) { p.Pause() },
		"black hole": func(p *Proxy) { p.BlackHole() },
		"drop":       func(p *Proxy) { p.Judge(ToClient, Lose(-1, Mute)) },
		"half open":  func(p *Proxy) { p.HalfOpen(ToClient) },
	} {
		e := newEcho(t)
		p, err := Start(e.addr)
		must(t, err)
		c := dial(t, p)
		answered(t, c, e)
		spoil(p)
		_, _ = io.WriteString(c, "under way\n") // half open: it may be cut
		fresh := dial(t, p)
		_, err = io.WriteString(fresh, "under way\n")
		must(t, err)
		closed := make(chan error, 1)
		go func() { closed <- p.Close() }()
		if err := receive(t, closed, "Close with "+name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if s := p.Stats(); s.Open != 0 {
			t.Errorf("%s: %d connections are left", name, s.Open)
		}
		if err := p.Restore(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: Restore after Close: %v", name, err)
		}
		must(t, p.Close())
	}
}

func TestBoundaries(t *testing.T) {
	for name, of := range map[string]struct {
		end      Boundary
		messages []string
	}{
		"RESP": {RESP, []string{
			"+OK\r\n", "-ERR no\r\n", ":12\r\n", "$5\r\nab\r\nc\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n",
			"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", "*2\r\n*1\r\n:1\r\n$-1\r\n", "%1\r\n+a\r\n:1\r\n", "~1\r\n#t\r\n",
			">2\r\n+message\r\n$1\r\nx\r\n", "_\r\n", ",1.5\r\n", "=7\r\ntxt:abc\r\n", "|1\r\n+a\r\n+b\r\n:1\r\n",
		}},
		"Postgres": {Postgres, []string{
			"\x00\x00\x00\x08\x04\xd2\x16\x2f", // asks for TLS
			"\x00\x00\x00\x0a\x00\x03\x00\x00\x00\x00", "Q\x00\x00\x00\x0dSELECT 1\x00", "Z\x00\x00\x00\x05I", "S\x00\x00\x00\x04",
		}},
		"MySQL": {MySQL, []string{"\x01\x00\x00\x00\x0e", "\x00\x00\x00\x01", "\x05\x00\x00\x02abcde", "\x00\x01\x00\x03" + strings.Repeat("x", 256)}},
		"HTTP2": {HTTP2, []string{
			"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
			"\x00\x00\x00\x04\x00\x00\x00\x00\x00", // SETTINGS, empty
			"\x00\x00\x08\x06\x00\x00\x00\x00\x00abcdefgh", "\x00\x01\x00\x00\x01\x00\x00\x00\x01" + strings.Repeat("x", 256),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, m := range of.messages {
				checkBoundary(t, of.end, m)
			}
		})
	}
}

// checkBoundary checks b with the whole message, with the message before other bytes, and with
// the message cut at every byte.
func checkBoundary(t *testing.T, b Boundary, m string) {
	t.Helper()
	for _, rest := range []string{"", "\x00", "+OK\r\n"} {
		if n := b([]byte(m + rest)); n != len(m) {
			t.Errorf("%q + %q: %d, want %d", m, rest, n, len(m))
		}
	}
	for i := range len(m) {
		if n := b([]byte(m[:i])); n != 0 {
			t.Errorf("%q of %q: %d, want 0", m[:i], m, n)
		}
	}
}
