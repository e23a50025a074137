package session

import (
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// run reads the server's answers until the session ends. It always reads, so that the end of an
// idle connection is noticed at once.
func (s *Session) run() {
	defer s.h.Running.Done()
	err := s.message()
	for err == nil {
		err = s.message()
	}
	s.mu.Lock()
	s.fail(err, false)
	s.mu.Unlock()
	s.h.Ended(s)
}

// message reads and handles the server's next message.
func (s *Session) message() error {
	m, err := s.w.Receive()
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
	case *pgproto3.ErrorResponse:
		return s.serverError(pgconn.ErrorResponseToPgError(m))
	case *pgproto3.ReadyForQuery:
		if !s.ready() {
			return ErrEnded
		}
	}
	return nil
}

// serverError handles an error from the server: it ends the session, or is the answer to a
// statement.
func (s *Session) serverError(e *pgconn.PgError) error {
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
