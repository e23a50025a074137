package postgres

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
)

// The statements of a session are prepared once, in SQL: EXECUTE is a single message
// of the simple protocol, and needs no planning. A lock and its token are one
// statement. Those for several keys, an array, have the name with an "s".
var (
	stLock   = [...]string{driver.Exclusive: "dlock_x", driver.Shared: "dlock_s"} // token or null
	stUnlock = [...]string{driver.Exclusive: "dlock_u", driver.Shared: "dlock_v"} // true or false
	suffixes = [...]string{driver.Exclusive: "", driver.Shared: "_shared"}        // of the server's functions
)

const beat = "SELECT pg_backend_pid()"

// queries makes SQL of locks and tokens.
type queries struct{ token string }

// newQueries takes the sequence; empty: no tokens.
func newQueries(sequence string) queries {
	if sequence == "" {
		return queries{"1"}
	}
	return queries{"nextval(" + literal(sequence) + "::regclass)"}
}

// lock is an expression: a token if the lock is granted. A reader passes the writer that waits
// before it takes the lock.
func (q queries) lock(mode driver.Mode, args, writers string) string {
	try := "CASE WHEN pg_try_advisory_lock" + suffixes[mode] + "(" + args + ") THEN " + q.token + " END"
	if mode == driver.Shared {
		return pass(writers, try)
	}
	return try
}

// pass has the writers' pair for a moment, and not until the statement's end: a writer that
// begins to wait tries for it.
func pass(writers, then string) string {
	return "CASE WHEN pg_try_advisory_lock_shared(" + writers + ") THEN CASE WHEN pg_advisory_unlock_shared(" + writers + ") THEN " + then + " END END"
}

func unlock(mode driver.Mode, args string) string {
	return "pg_advisory_unlock" + suffixes[mode] + "(" + args + ")"
}

// prepare returns the statements that a new session prepares.
func (q queries) prepare() string {
	var b strings.Builder
	p := func(name, one, each string) {
		fmt.Fprintf(&b, "PREPARE %s(int8) AS SELECT %s;\nPREPARE %[1]ss(int8[]) AS SELECT %[3]s FROM unnest($1) AS k;\n", name, one, each)
	}
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		p(stLock[mode], q.lock(mode, "$1", writersOf("$1")), q.lock(mode, "k", writersOf("k")))
		p(stUnlock[mode], unlock(mode, "$1"), unlock(mode, "k"))
	}
	return b.String()
}

// try is the statement that asks for one lock.
func (q queries) try(n lockNumber, mode driver.Mode) string {
	if n.pair {
		return "SELECT " + q.lock(mode, n.args(), pairArgs(n.writers()))
	}
	return "EXECUTE " + stLock[mode] + "(" + n.args() + ")"
}

// unlock is the statement that gives one lock back.
func (n lockNumber) unlock(mode driver.Mode) string {
	if n.pair {
		return "SELECT " + unlock(mode, n.args())
	}
	return "EXECUTE " + stUnlock[mode] + "(" + n.args() + ")"
}

// milliseconds is how long the server is to bear a silent session of this class.
func milliseconds(class time.Duration) string {
	return strconv.FormatInt((class + grace(class)).Milliseconds(), 10)
}

// tell is the statement that sets the session's timeout.
func tell(class time.Duration) *statement {
	return &statement{sql: "SET idle_session_timeout = " + milliseconds(class), class: class}
}

// plan takes a round out of the queue. Unlocks go first. Locks of one kind are one
// statement. The server has a share once for all of a session's leases of it: the first takes
// it, the last gives it back, and those between ask for a token, and pass the
// writer that waits.
func (s *session) plan() []*statement {
	if s.beat == nil && len(s.queue) == 0 {
		return nil
	}
	var unlock, unshare, lock, share, again, later []*op
	most := min(len(s.queue), maxRound)
	given := map[lockNumber]bool{} // back to the server in this round
	for _, o := range s.queue[:most] {
		n := o.claim.number
		switch {
		case !o.leaves:
			continue
		case o.claim.mode == driver.Exclusive:
			unlock = append(unlock, o)
		case s.holds[n] > 1:
			s.removeLease(o.lease)
			o.finish(nil)
		default:
			unshare = append(unshare, o)
			given[n] = true
		}
		o.sent = true
	}
	asked := map[lockNumber]bool{}
	for _, o := range s.queue[:most] {
		n := o.claim.number
		switch {
		case o.leaves:
			continue
		case o.claim.mode == driver.Exclusive:
			lock = append(lock, o)
		case asked[n] || given[n]: // one at a time, so that it is known what the session has
			later = append(later, o)
			continue
		case s.holds[n] > 0:
			again = append(again, o)
		default:
			share = append(share, o)
		}
		asked[n] = true
		o.sent = true
	}
	s.queue = append(later, s.queue[most:]...)

	var out []*statement
	if class := s.needs(lock, share, again); class != 0 {
		s.class = class
		if class != s.told {
			out = append(out, tell(class))
		}
	}
	out = s.planned(out, unlock, stUnlock, (*session).unlocked)
	out = s.planned(out, unshare, stUnlock, (*session).unlocked)
	out = s.planned(out, lock, stLock, (*session).locked)
	out = s.planned(out, share, stLock, (*session).locked)
	for _, o := range again {
		sql := "SELECT " + pass(pairArgs(o.claim.number.writers()), s.b.sql.token)
		out = append(out, &statement{sql: sql, ops: []*op{o}, do: (*session).locked})
	}
	if s.beat != nil {
		s.beating, s.beat = s.beat, nil
		s.beating.sent = true
		if len(out) == 0 || s.b.opt.Pooler != "" {
			out = append(out, &statement{sql: beat, do: (*session).beaten})
		}
	}
	return out
}

// needs is the class for what the session has and is asked for; zero if that is
// nothing. It falls only when the session has nothing.
func (s *session) needs(asked ...[]*op) time.Duration {
	class := time.Duration(0)
	if len(s.leases) > 0 {
		class = max(s.class, s.told, s.raise)
	}
	s.raise = 0
	for _, ops := range asked {
		for _, o := range ops {
			class = max(class, classOf(o.ttl))
		}
	}
	return class
}

// planned appends the statements for requests of one kind and mode: one for all that have a
// plain number.
func (s *session) planned(out []*statement, ops []*op, names [2]string, do func(*session, *statement)) []*statement {
	var together []*op
	for _, o := range ops {
		if len(ops) > 1 && !o.claim.number.pair {
			together = append(together, o)
			continue
		}
		out = append(out, s.single(o, do))
	}
	if len(together) > 0 {
		out = append(out, &statement{sql: many(names[ops[0].claim.mode]+"s", together), ops: together, do: do})
	}
	return out
}

// single is the statement for one request.
func (s *session) single(o *op, do func(*session, *statement)) *statement {
	st := &statement{ops: []*op{o}, do: do}
	if o.leaves {
		st.sql = o.claim.number.unlock(o.claim.mode)
	} else {
		st.sql = s.b.sql.try(o.claim.number, o.claim.mode)
	}
	return st
}

// many is a statement of several keys in an array.
func many(name string, ops []*op) string {
	b := make([]byte, 0, 24+20*len(ops))
	b = append(append(append(b, "EXECUTE "...), name...), "('{"...)
	for i, o := range ops {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, o.claim.number.n, 10)
	}
	return string(append(b, "}')"...))
}

// locked takes the answer to locks. If it is an error some may have been granted: the lock
// stays when what follows it fails. A session has none of those that it asks for, but
// for a share that it has already, of which nothing more is taken.
func (s *session) locked(st *statement) {
	switch {
	case st.err == nil && len(st.values) == len(st.ops):
		for i, o := range st.ops {
			s.decide(o, st.values[i], st.sent)
		}
		return
	case st.err == nil:
		s.failWith(st.ops, fmt.Errorf("postgres: %d rows for %d locks", len(st.values), len(st.ops)))
		return
	}
	unlocks := ""
	for _, o := range st.ops {
		if s.holds[o.claim.number] == 0 {
			unlocks += o.claim.number.unlock(o.claim.mode) + "; "
		}
	}
	s.cleanUp(unlocks, st.ops, retries, func() {
		for _, o := range st.ops {
			if len(st.ops) == 1 {
				s.refuse(o, st.err)
			} else { // one by one, so that the error finds the one that it is about
				s.send(s.single(o, (*session).locked))
			}
		}
	})
}

// retries is how often a statement that must not fail is sent again, because somebody
// cancels it, before the session is given up.
const retries = 20

// cleanUp unlocks the locks that the session may have because of ops, and calls then. The
// mutex is held.
func (s *session) cleanUp(unlocks string, ops []*op, retries int, then func()) {
	if unlocks == "" {
		then()
		return
	}
	s.send(&statement{sql: unlocks, ops: ops, do: func(s *session, st *statement) {
		switch {
		case st.err == nil:
			then()
		case retries > 0:
			s.cleanUp(unlocks, ops, retries-1, then)
		default:
			s.failWith(ops, fmt.Errorf("postgres: a lock could not be given back: %w", st.err))
		}
	}})
}

// decide settles a request: with a token it is granted, with none refused.
func (s *session) decide(o *op, token int64, sent time.Time) {
	if token <= 0 {
		s.b.table.drop(o.claim)
		o.finish(&driver.HeldError{Server: s.server.id})
		return
	}
	l := s.grant(o, token, sent)
	// It is over, or nobody wants it, or it lives under a shorter timeout than it needs.
	if o.gone || !time.Now().Before(driver.Expires(sent, o.ttl)) || s.known < classOf(o.ttl) {
		s.unlock(l)
		o.finish(errTimeout)
		return
	}
	o.lease = l
	o.finish(nil)
}

// grant makes the lease of a grant that was asked for at sent.
func (s *session) grant(o *op, token int64, sent time.Time) *lease {
	l := &lease{s: s, claim: o.claim, ttl: o.ttl, start: sent}
	if s.b.schema != "" {
		l.fence = uint64(token)
		s.b.sawToken(l.fence)
	}
	s.leases[l] = struct{}{}
	if s.holds[o.claim.number]++; s.holds[o.claim.number] == 1 {
		s.b.locks.Add(1)
	}
	if end := l.end(); len(s.leases) == 1 || end.Before(s.nextEnd) {
		s.nextEnd = end
	}
	s.b.table.granted(o.claim)
	s.schedule(time.Now())
	return l
}

// removeLease takes a lease out of the books.
func (s *session) removeLease(l *lease) {
	delete(s.leases, l)
	if s.holds[l.claim.number]--; s.holds[l.claim.number] <= 0 {
		delete(s.holds, l.claim.number)
		s.b.locks.Add(-1)
	}
	s.b.table.drop(l.claim)
}

func (s *session) refuse(o *op, e *pgconn.PgError) {
	s.b.table.drop(o.claim)
	o.finish(verdict(e.Code, e, s.server.perTransaction))
}

// unlocked takes the answer to unlocks: false says that the lock was not there. An error
// (somebody cancelled the statement) says nothing; then each is asked for again.
func (s *session) unlocked(st *statement) {
	if st.err == nil && len(st.values) != len(st.ops) {
		s.failWith(st.ops, fmt.Errorf("postgres: %d rows for %d unlocks", len(st.values), len(st.ops)))
		return
	}
	for i, o := range st.ops {
		switch {
		case st.err != nil && o.tries == retries:
			s.failWith(st.ops[i:], fmt.Errorf("postgres: unlock: %w", st.err))
			return
		case st.err != nil:
			o.tries++
			s.send(s.single(o, (*session).unlocked))
		default:
			s.removeLease(o.lease)
			var err error
			if st.values[i] != 1 && o.tries == 0 {
				err = driver.ErrLost
			}
			o.finish(err)
		}
	}
}

// beaten takes the answer to a heartbeat: it comes from the same server process, or
// a pooler that does not pool sessions has given the locks to somebody else.
func (s *session) beaten(st *statement) {
	switch {
	case st.err != nil && s.b.opt.Pooler != "":
		s.send(&statement{sql: beat, do: (*session).beaten})
	case st.err == nil && (len(st.values) != 1 || st.values[0] != int64(s.w.pid)):
		s.fail(errors.New("postgres: the pooler has changed the server process under a session"), false)
	}
}
