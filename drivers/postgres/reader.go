package postgres

import (
	"errors"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// run reads the server's answers until the session ends. Somebody always reads, so that
// the end of an idle connection is noticed at once.
func (s *session) run() {
	defer s.b.wg.Done()
	err := s.message()
	for err == nil {
		err = s.message()
	}
	s.mu.Lock()
	s.fail(err, false)
	s.mu.Unlock()
	s.b.forget(s)
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
	case *pgproto3.ErrorResponse:
		return s.serverError(pgconn.ErrorResponseToPgError(m))
	case *pgproto3.ReadyForQuery:
		if !s.ready() {
			return errEnded
		}
	}
	return nil
}

// serverError takes an error of the server's: one that ends the session, or the answer
// to a statement.
func (s *session) serverError(e *pgconn.PgError) error {
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
