package postgres

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
)

// These tests look at the rounds that a connection makes of its requests, in virtual time. They write
// down what the server would answer.

// A wire keeps what is written to it.
type wire struct {
	net.Conn
	sent []byte
}

func (w *wire) Write(b []byte) (int, error)      { w.sent = append(w.sent, b...); return len(b), nil }
func (w *wire) SetWriteDeadline(time.Time) error { return nil }
func (w *wire) Close() error                     { return nil }

// A script is a connection whose answers are written down.
type script struct {
	*testing.T
	*conn
	wire *wire
}

const scriptPid = 7

// rounds runs a test of a connection.
func rounds(t *testing.T, o *Options, test func(s *script)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b, err := New(func(context.Context) (*pgx.Conn, error) { return nil, errEnded }, o)
		drivertest.Must(t, err)
		s := &script{T: t, conn: newConn(b, 0), wire: &wire{}}
		s.w, s.reading = &wireConn{nc: s.wire, pid: scriptPid}, true
		func() {
			s.mu.Lock() // all that a test calls has the connection's mutex
			defer s.mu.Unlock()
			test(s)
		}()
		drivertest.Must(t, b.Close())
	})
}

// sleep lets the connection do its periodic work meanwhile.
func (s *script) sleep(d time.Duration) {
	s.mu.Unlock()
	time.Sleep(d)
	s.mu.Lock()
}

// ask puts a request for a lock into the queue.
func (s *script) ask(n number, mode driver.Mode, ttl time.Duration) *lease {
	l := &lease{want: want{number: n, mode: mode, ttl: ttl, owner: fmt.Sprint("owner/", n)}, c: s.conn}
	l.taking = op{l: l, class: classOf(ttl)}
	s.queue.locks = append(s.queue.locks, &l.taking)
	return l
}

// lock asks for a lock alone, which gets this token.
func (s *script) lock(n number, mode driver.Mode, token int64) *lease {
	s.Helper()
	l := s.ask(n, mode, 10*time.Second)
	s.flush()
	for ; len(s.round) > 1; s.say() { // the class
	}
	s.say(token)
	s.wire.sent = nil
	s.is(&l.taking, "granted")
	return l
}

// beat asks for a renewal.
func (s *script) beat(l *lease, ttl time.Duration) *op {
	o := &op{l: l, class: classOf(ttl)}
	s.queue.beats = append(s.queue.beats, o)
	return o
}

// sends sends the queue, and asserts what was sent since the last time.
func (s *script) sends(want ...string) {
	s.Helper()
	s.flush()
	var sent []string
	for b := s.wire.sent; len(b) > 0; {
		n := 1 + binary.BigEndian.Uint32(b[1:])
		sent, b = append(sent, string(b[5:n-1])), b[n:]
	}
	s.wire.sent = nil
	if !slices.Equal(sent, want) {
		s.Fatalf("sent:\n%s\nwant:\n%s", strings.Join(sent, "\n"), strings.Join(want, "\n"))
	}
}

// say answers the first statement of the round.
func (s *script) say(values ...int64) {
	s.values = values
	s.ready()
	s.values = nil
}

// fails answers the first statement of the round with an error.
func (s *script) fails(code string) {
	s.serverError(&pgconn.PgError{Severity: "ERROR", Code: code})
	s.say()
}

// is asserts the state of a request.
func (s *script) is(o *op, want string) {
	s.Helper()
	got := "waits"
	if o.answered.Load() {
		got = "granted"
		if o.err != nil {
			got = drivertest.Verdict(o.err)
		}
	}
	if got != want {
		s.Fatalf("the request for %v: %s, %v; want that it is %s", o.l.number, got, o.err, want)
	}
}

const exclusive, shared = driver.Exclusive, driver.Shared

func TestARoundHasOneStatementForTheRequestsOfOneKind(t *testing.T) {
	rounds(t, nil, func(s *script) {
		gone := s.ask(9, exclusive, time.Minute)
		gone.taking.gone = true
		s.sends()
		a, b := s.ask(1, exclusive, time.Second), s.ask(2, exclusive, 10*time.Second)
		r, again, writer := s.ask(3, shared, time.Second), s.ask(3, shared, time.Second), s.ask(3, exclusive, time.Second)
		lone, ranged := s.ask(5, shared, time.Second), s.ask(4, exclusive, time.Second)
		ranged.tokens = 2
		same := s.ask(5, shared, time.Second)
		s.sends("SET idle_session_timeout = 11000", "EXECUTE dlock_xs('{1,2}')", "EXECUTE dlock_ss('{3,5}')",
			"SELECT "+s.b.sql.lock(exclusive, "4", "", 2))
		s.say()
		s.say(101, -1)
		s.is(&a.taking, "granted")
		s.is(&b.taking, "held")
		s.say(102, -1)
		s.is(&r.taking, "granted")
		s.is(&lone.taking, "held")
		s.is(&same.taking, "held")
		s.is(&again.taking, "waits")
		s.say(107)
		s.is(&ranged.taking, "granted")
		s.sends("SELECT " + pass(number(3).writers(), s.b.sql.token))
		s.is(&writer.taking, "held")
		s.say(108)
		s.is(&again.taking, "granted")
		if s.leases != 4 || a.fence != 101 || r.fence != 102 || ranged.fence != 107 || again.fence != 108 || s.b.highest.Load() != 108 {
			t.Errorf("%d leases, with the tokens %d, %d, %d and %d; the highest is %d", s.leases, a.fence, r.fence, ranged.fence, again.fence, s.b.highest.Load())
		}
	})
}

// A session that has a lock would be given it again by the server.
func TestAConnectionRefusesWhatItsOwnLeaseExcludes(t *testing.T) {
	rounds(t, nil, func(s *script) {
		w := s.lock(1, exclusive, 101)
		for _, mode := range []driver.Mode{exclusive, shared} {
			l := s.ask(1, mode, time.Second)
			s.sends()
			s.is(&l.taking, "held")
			if held := l.taking.err.(*driver.HeldError); held.Holder != w.owner || !held.Since.Equal(w.since) { //nolint:errorlint // it is ours
				t.Errorf("held: %+v", held)
			}
		}
		first, second := s.lock(2, shared, 102), s.lock(2, shared, 103)
		s.unlock(second)
		l := s.ask(2, exclusive, time.Second)
		s.sends() // the unlock of one of two needs no statement
		s.is(&l.taking, "held")
		s.is(&second.freeing, "granted")
		if held := l.taking.err.(*driver.HeldError); held.Holder != first.owner { //nolint:errorlint // it is ours
			t.Errorf("held: %+v", held)
		}
	})
}

func TestTheLastOfSharedLeasesUnlocks(t *testing.T) {
	rounds(t, nil, func(s *script) {
		var l [4]*lease
		for i := range l {
			l[i] = s.lock(1, shared, 101+int64(i))
		}
		s.unlock(l[1])
		s.unlock(l[1]) // once is enough
		s.sends()
		s.is(&l[1].freeing, "granted")
		s.unlock(l[3])
		s.unlock(l[0])
		s.sends()
		if s.leases != 1 || s.held[1] != l[2] || l[2].next != nil {
			t.Fatalf("%d leases, the first %p, want %p alone", s.leases, s.held[1], l[2])
		}
		x := s.lock(2, exclusive, 105)
		s.unlock(l[2])
		s.unlock(x)
		after := s.ask(1, shared, 10*time.Second)
		next := s.ask(2, exclusive, 10*time.Second)
		s.sends("EXECUTE dlock_u(2)", "EXECUTE dlock_v(1)")
		s.say(1)
		s.is(&x.freeing, "granted")
		s.say(0)
		s.is(&l[2].freeing, "lost")
		s.sends("EXECUTE dlock_x(2)", "EXECUTE dlock_s(1)")
		s.say(-1)
		s.say(106)
		s.is(&next.taking, "held")
		s.is(&after.taking, "granted")
		s.unlock(after)
		s.sends("EXECUTE dlock_v(1)")
		if s.say(1); s.leases != 0 || len(s.held) != 0 {
			t.Errorf("%d leases are left, of %d locks", s.leases, len(s.held))
		}
	})
}

func TestAHeartbeatIsSentUnlessAnotherStatementIs(t *testing.T) {
	for _, pooler := range []string{"", "session"} {
		rounds(t, &Options{Pooler: pooler}, func(s *script) {
			l, other := s.lock(1, exclusive, 101), s.lock(2, exclusive, 102)
			o := s.beat(l, 10*time.Second)
			s.sends(beat)
			s.is(o, "waits")
			s.say(scriptPid)
			s.is(o, "granted")
			o = s.beat(l, time.Minute)
			s.unlock(other)
			with := []string{"SET idle_session_timeout = 62000", "EXECUTE dlock_u(2)"}
			if pooler != "" {
				with = append(with, beat)
			}
			s.sends(with...)
			s.say()
			if s.is(o, "waits"); pooler == "" {
				s.say(1)
				s.is(o, "granted")
				return
			}
			s.say(1)
			s.is(o, "waits")
			s.say(scriptPid + 1) // the pooler gave the session another process
			s.is(o, "unknown")
			if s.end == nil || !s.ended() {
				t.Error("the session goes on")
			}
		})
	}
}

func TestAnErrorOfALockStatementUnlocksWhatItMayHaveTaken(t *testing.T) {
	rounds(t, nil, func(s *script) {
		reader := s.lock(1, shared, 101)
		again := s.ask(1, shared, 10*time.Second)
		s.flush()
		s.fails("53200")
		s.is(&again.taking, "refused")
		for _, n := range []int{1, 2} {
			s.wire.sent = nil
			var all []*lease
			undo := ""
			for i := range n {
				all = append(all, s.ask(number(5+i), exclusive, 10*time.Second))
				undo += fmt.Sprintf("EXECUTE dlock_u(%d); ", 5+i)
			}
			s.flush()
			s.wire.sent = nil
			s.fails("53200")
			s.sends(undo)
			s.is(&all[0].taking, "waits")
			s.say(make([]int64, n)...)
			for _, l := range all {
				s.is(&l.taking, "refused")
			}
		}
		if s.leases != 1 || s.held[1] != reader || s.end != nil {
			t.Errorf("%d leases, %v", s.leases, s.end)
		}
	})
}

// What the caller cannot use goes back at once.
func TestAGrantThatIsLateOrUnwantedIsGivenBack(t *testing.T) {
	rounds(t, nil, func(s *script) {
		s.lock(1, exclusive, driver.MaxFence)
		for what, c := range map[string]struct {
			token int64
			then  func(l *lease)
			want  string
		}{
			"a token over the largest": {driver.MaxFence + 1, func(*lease) {}, "refused"},
			"a caller that has gone":   {103, func(l *lease) { l.taking.gone = true }, "unknown"},
			"a grant at its end":       {104, func(*lease) { s.sleep(driver.Expires(time.Time{}, 10*time.Second).Sub(time.Time{})) }, "unknown"},
		} {
			l := s.ask(2, exclusive, 10*time.Second)
			s.sends("EXECUTE dlock_x(2)")
			c.then(l)
			s.say(c.token)
			s.is(&l.taking, c.want)
			if !l.leaving {
				t.Fatalf("%s: kept", what)
			}
			s.sends("EXECUTE dlock_u(2)")
			s.say(1)
		}
		if highest := s.b.highest.Load(); highest != driver.MaxFence {
			t.Errorf("the highest token is %d", highest)
		}
	})
}

func TestNoLockIsAskedForDuringTheRestartGuard(t *testing.T) {
	rounds(t, nil, func(s *script) {
		s.server.notBefore = time.Now().Add(time.Second)
		l := s.ask(1, exclusive, time.Second)
		s.sends()
		s.is(&l.taking, "refused")
		s.sleep(time.Second)
		s.lock(1, exclusive, 101)
		s.ask(2, exclusive, time.Second) // the session keeps the class of its lease
		s.sends("EXECUTE dlock_x(2)")
	})
}

func TestARangeOfTokensIsDrawnWhole(t *testing.T) {
	for n, want := range []string{"t", "t", "(SELECT max(t) FROM generate_series(1, 2))", "(SELECT max(t) FROM generate_series(1, 3))"} {
		if got := (queries{"t"}).last(uint32(n)); got != want {
			t.Errorf("%d tokens: %s, want %s", n, got, want)
		}
	}
}

// The timeouts of the package's documentation.
func TestTheServersTimeoutIsTheClassAndItsGrace(t *testing.T) {
	if classes[0] != minTTL || classes[len(classes)-1] != maxTTL {
		t.Errorf("the classes are from %v to %v, and TTLs from %v to %v", classes[0], classes[len(classes)-1], minTTL, maxTTL)
	}
	all := strings.Fields("150 250 550 1100 2200 3300 5500 11000 16500 22000 32000 62000 122000 302000 602000 1802000 3602000")
	for i, class := range classes {
		if got := milliseconds(classOf(class)); got != all[i] {
			t.Errorf("a TTL of %v: %s ms, want %s", class, got, all[i])
		}
		if i > 0 && classOf(classes[i-1]+1) != class {
			t.Errorf("the class of a TTL over %v is %v, want %v", classes[i-1], classOf(classes[i-1]+1), class)
		}
	}
	for ttl, want := range map[time.Duration]time.Duration{minTTL: time.Second, 4 * time.Second: 2 * time.Second, maxTTL: 5 * time.Second} {
		if got := patience(ttl); got != want {
			t.Errorf("an attempt for %v waits for %v, want %v", ttl, got, want)
		}
	}
}
