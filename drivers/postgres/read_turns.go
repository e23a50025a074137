package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// turns says who reads from the connection: the reader, a goroutine that also
// notices the end of an idle connection; or, where nobody reads, the caller who has just
// sent a round. A caller that reads its own answer is spared the passing of it from
// thread to thread, which costs as much as the server's own work. So the reader
// leaves an idle connection alone for a moment. The fields are guarded by the session.
//
// A timer that is set or stopped often wakes a thread each time, which costs a lone caller
// as much as all the rest of our work. So the alarm is set once and looks for
// itself whether it came too early, and the session's tick has the callers' limits.
type readTurns struct {
	reading bool        // somebody reads, or is about to
	limit   time.Time   // until when the caller who reads may; zero: no limit, or nobody reads
	quiet   time.Time   // when somebody last had done
	turn    wakeup      // wakes the reader
	alarm   *time.Timer // does so when the connection has been idle for a while
	armed   bool        // the alarm is set
}

// lull is how long the reader leaves a connection alone that has just been used, and
// so how late it may notice its end.
const idlePeriod = 2 * time.Millisecond

// wakeup is a channel of capacity one.
type wakeup chan struct{}

func (w wakeup) wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// call wakes the reader, if there is an answer to come and nobody to read it; the
// mutex is held.
func (s *session) call() {
	if !s.reading && len(s.round) > 0 {
		s.turn.wake()
	}
}

// borrow makes the caller the one who reads, if nobody does; before anything is sent,
// so that nobody is woken for it. The mutex is held.
func (s *session) borrow() bool {
	if s.reading {
		return false
	}
	s.reading = true
	return true
}

// arm sets the alarm, if it is not; the mutex is held.
func (s *session) arm(d time.Duration) {
	if !s.armed && s.end == nil {
		s.armed = true
		s.alarm.Reset(d)
	}
}

// rouse wakes the reader, if the connection has been idle for a while.
func (s *session) rouse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
	if s.reading || s.end != nil { // who reads sets it again
		return
	}
	if rest := idlePeriod - time.Since(s.quiet); rest > 0 {
		s.arm(rest)
		return
	}
	s.turn.wake()
}

// flushFor is flush for a caller that can read the answer to o, and reports whether it
// has to; the mutex is held.
func (s *session) flushFor(o *op) (reads bool) {
	reads = s.borrow()
	s.flush()
	if !reads || o.sent && len(s.round) > 0 {
		return reads
	}
	s.reading = false
	s.call()
	s.arm(idlePeriod)
	return false
}

// forever is a limit that is none.
const forever = 1000 * time.Hour

// answer waits until o is answered, and reports whether it was before ctx ended and
// within limit, or a tick after that. reads is what flushFor said.
func (s *session) answer(ctx context.Context, o *op, reads bool, limit time.Duration) bool {
	if reads {
		return s.readFor(ctx, o, limit)
	}
	end, late := time.Now().Add(limit), o.late
	for {
		select {
		case <-o.done:
			return true
		case <-ctx.Done():
			return false
		case <-late:
			if !time.Now().Before(end) {
				return false
			}
			s.mu.Lock()
			late = s.late
			s.mu.Unlock()
		}
	}
}

// readFor reads until o is answered. Who gives up interrupts the read, and leaves the
// rest to the reader: what has arrived of a message is kept.
func (s *session) readFor(ctx context.Context, o *op, limit time.Duration) bool {
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, s.interrupt)
		defer stop()
	}
	end := time.Now().Add(limit)
	s.mu.Lock()
	s.limit = end
	s.mu.Unlock()
	for {
		select {
		case <-o.done:
			s.handBack(nil)
			return true
		default:
		}
		err := s.message()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			_ = s.w.nc.SetReadDeadline(time.Time{})
			// It may have been meant for somebody before us. Look after the deadline was
			// taken back: an interruption that comes now stays.
			if ctx.Err() == nil && time.Now().Before(end) {
				continue
			}
			s.handBack(nil)
			return false
		}
		if err != nil { // the session has ended, and so will o
			s.handBack(err)
			<-o.done
			return o.err == nil || ctx.Err() == nil
		}
	}
}

// interrupt makes who reads look up.
func (s *session) interrupt() { _ = s.w.nc.SetReadDeadline(time.Unix(1, 0)) }

// handBack ends a caller's turn.
func (s *session) handBack(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading, s.limit, s.quiet = false, time.Time{}, time.Now()
	if err != nil {
		s.fail(err, false)
	}
	if len(s.round) > 0 || err != nil {
		s.turn.wake()
		return
	}
	s.arm(idlePeriod)
}

// run is the reader: it reads until the session ends.
func (s *session) run() {
	defer s.b.wg.Done()
	err := s.read()
	s.mu.Lock()
	s.fail(err, false)
	s.mu.Unlock()
	s.b.forget(s)
}

func (s *session) read() error {
	for range s.turn {
		for {
			mine, err := s.takeTurn()
			if err != nil {
				return err
			}
			if !mine {
				break
			}
			if err := s.readRounds(); err != nil {
				return err
			}
		}
	}
	return errEnded
}

// takeTurn lets the reader read if nobody else does, and there is an answer to come or
// the connection has been idle for a while.
func (s *session) takeTurn() (mine bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return false, s.end
	}
	if s.reading { // who reads sets the alarm when he has done
		return false, nil
	}
	if rest := idlePeriod - time.Since(s.quiet); rest > 0 && len(s.round) == 0 {
		s.arm(rest)
		return false, nil
	}
	s.reading = true
	return true, nil
}

// readRounds reads until nothing must be answered any more.
func (s *session) readRounds() error {
	for {
		err := s.message()
		if errors.Is(err, os.ErrDeadlineExceeded) { // meant for a caller that has done
			_ = s.w.nc.SetReadDeadline(time.Time{})
			continue
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		if len(s.round) == 0 {
			s.reading, s.quiet = false, time.Now()
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
	}
}

// message takes the server's next message.
func (s *session) message() error {
	m, err := s.w.in.Receive()
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the server closed the connection")
		}
		return fmt.Errorf("postgres: %w", err)
	}
	switch m := m.(type) {
	case *pgproto3.DataRow:
		if len(m.Values) > 0 {
			s.row(m.Values[0])
		}
	case *pgproto3.CommandComplete:
		if st := s.front(); st != nil {
			st.sets++
		}
	case *pgproto3.ErrorResponse:
		return s.complaint(pgconn.ErrorResponseToPgError(m))
	case *pgproto3.ReadyForQuery:
		if !s.ready() {
			return errEnded
		}
	}
	return nil
}

// complaint takes an error of the server's: one that ends the session, or the answer
// to a statement.
func (s *session) complaint(e *pgconn.PgError) error {
	for _, severity := range []string{e.Severity, e.SeverityUnlocalized} {
		if severity == "FATAL" || severity == "PANIC" {
			s.mu.Lock()
			s.fatal = true
			s.mu.Unlock()
			return fmt.Errorf("postgres: %w", e)
		}
	}
	if st := s.front(); st != nil {
		st.err = e
	}
	return nil
}
