package postgres

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
)

// The statements of a session are prepared once, in SQL: EXECUTE is a single message
// of the simple protocol, and spares the planning. A lock and its token are one
// statement. The names of those for several keys end in "s".
const (
	stLock     = "dlock_x"  // (key): token or null
	stLocks    = "dlock_xs" // (keys): a row each
	stShare    = "dlock_s"
	stShares   = "dlock_ss"
	stUnlock   = "dlock_u" // (key): true or false
	stUnlocks  = "dlock_us"
	stUnshare  = "dlock_v"
	stUnshares = "dlock_vs"
	stAgain    = "dlock_a" // (key): shared once more, without a token
	stToken    = "dlock_t" // a token
	stWait     = "dlock_w" // (key): gives a token when it is granted
	stWaitS    = "dlock_y"
	stBeat     = "dlock_b" // the server process
)

// prepare returns what a new session prepares. fence is the quoted sequence, or empty.
func prepare(fence string) string {
	lock := func(f, key string) string { return f + "(" + key + ")" }
	token := "1"
	if fence != "" {
		token = "nextval('" + strings.ReplaceAll(fence, "'", "''") + "'::regclass)"
		lock = func(f, key string) string {
			return "CASE WHEN " + f + "(" + key + ") THEN " + token + " END"
		}
	}
	const x, s = "pg_try_advisory_lock", "pg_try_advisory_lock_shared"
	var b strings.Builder
	p := func(name, args, body string) { fmt.Fprintf(&b, "PREPARE %s%s AS SELECT %s;\n", name, args, body) }
	p(stLock, "(int8)", lock(x, "$1"))
	p(stShare, "(int8)", lock(s, "$1"))
	p(stLocks, "(int8[])", lock(x, "k")+" FROM unnest($1) AS k")
	p(stShares, "(int8[])", lock(s, "k")+" FROM unnest($1) AS k")
	p(stUnlock, "(int8)", "pg_advisory_unlock($1)")
	p(stUnshare, "(int8)", "pg_advisory_unlock_shared($1)")
	p(stUnlocks, "(int8[])", "pg_advisory_unlock(k) FROM unnest($1) AS k")
	p(stUnshares, "(int8[])", "pg_advisory_unlock_shared(k) FROM unnest($1) AS k")
	p(stAgain, "(int8)", s+"($1)")
	p(stToken, "", token)
	wait := func(f string) string { return "CASE WHEN " + f + "($1) IS NOT NULL THEN " + token + " END" }
	p(stWait, "(int8)", wait("pg_advisory_lock"))
	p(stWaitS, "(int8)", wait("pg_advisory_lock_shared"))
	p(stBeat, "", "pg_backend_pid()")
	return b.String()
}

// many is a statement of several keys in an array.
func many(name string, ids []int64) string {
	b := make([]byte, 0, 24+20*len(ids))
	b = append(append(append(b, "EXECUTE "...), name...), "('{"...)
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, id, 10)
	}
	return string(append(b, "}')"...))
}

// milliseconds is how long the server is to bear a silent session of this class.
func milliseconds(class time.Duration) string {
	return strconv.FormatInt((class + grace(class)).Milliseconds(), 10)
}

// tell is the statement that sets the session's timeout.
func (s *session) tell(class time.Duration) *statement {
	return &statement{sql: "SET idle_session_timeout = " + milliseconds(class), class: class}
}

// plan takes a round out of the queue. Unlocks go first. Locks of one kind are one
// statement, but for a key that the session shares already: see again.
func (s *session) plan() []*statement {
	if s.beat == nil && len(s.queue) == 0 {
		return nil
	}
	var unlock, unshare, lock, share, again, later []*op
	var asked map[int64]bool // of shares
	most := min(len(s.queue), maxRound)
	for _, o := range s.queue[:most] {
		switch {
		case o.lease != nil && o.lease.claim.mode == driver.Exclusive:
			unlock = append(unlock, o)
		case o.lease != nil:
			unshare = append(unshare, o)
		case o.claim.mode == driver.Exclusive:
			lock = append(lock, o)
		case asked[o.claim.id]:
			later = append(later, o) // so that a failed share can be undone for certain
			continue
		case s.holds[o.claim.id] > 0:
			again = append(again, o)
		default:
			share = append(share, o)
		}
		if o.claim != nil && o.claim.mode == driver.Shared {
			if asked == nil {
				asked = map[int64]bool{}
			}
			asked[o.claim.id] = true
		}
		o.sent = true
	}
	s.queue = slices.Delete(s.queue, 0, most)
	if len(later) > 0 {
		s.queue = append(later, s.queue...)
	}

	out := s.planned[:0]
	if class := s.needs(lock, share, again); class != 0 {
		s.class = class
		if class != s.told {
			out = append(out, s.tell(class))
		}
	}
	out = planned(out, unlock, stUnlock, stUnlocks, (*session).unlocked)
	out = planned(out, unshare, stUnshare, stUnshares, (*session).unlocked)
	out = planned(out, lock, stLock, stLocks, (*session).locked)
	out = planned(out, share, stShare, stShares, (*session).locked)
	for _, o := range again {
		out = append(out, s.again(o))
	}
	if s.beat != nil {
		s.beating, s.beat = s.beat, nil
		s.beating.sent = true
		if len(out) == 0 || s.b.opt.Pooler != "" {
			out = append(out, &statement{sql: "EXECUTE " + stBeat, do: (*session).beaten})
		}
	}
	s.planned = out
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

func ids(ops []*op) []int64 {
	list := make([]int64, len(ops))
	for i, o := range ops {
		list[i] = o.id()
	}
	return list
}

func (o *op) id() int64 {
	if o.claim != nil {
		return o.claim.id
	}
	return o.lease.claim.id
}

// planned appends the statement for requests of one kind.
func planned(out []*statement, ops []*op, single, several string, do func(*session, *statement)) []*statement {
	switch len(ops) {
	case 0:
		return out
	case 1:
		return append(out, (&statement{name: single, id: ops[0].id(), do: do}).of(ops[0]))
	}
	return append(out, &statement{sql: many(several, ids(ops)), ops: ops, do: do})
}

// locked takes the answer to locks that the session did not have before.
func (s *session) locked(st *statement) {
	if st.err == nil && len(st.values) != len(st.ops) {
		s.failUnanswered(st.ops)
		s.fail(fmt.Errorf("postgres: %d rows for %d locks", len(st.values), len(st.ops)), false)
		return
	}
	if st.err == nil {
		for i, o := range st.ops {
			s.decide(o, st.values[i], st.sent)
		}
		return
	}
	// Some may have been granted: the lock stays when what follows it fails. The
	// session had none of them, so that all can be given back unseen.
	single, name := stLock, stUnlocks
	if st.ops[0].claim.mode == driver.Shared {
		single, name = stShare, stUnshares
	}
	again := []*statement{{sql: many(name, ids(st.ops))}}
	if len(st.ops) == 1 {
		s.refuse(st.ops[0], st.err)
	} else { // one by one, so that the error finds the one that it is about
		for _, o := range st.ops {
			again = planned(again, []*op{o}, single, "", (*session).locked)
		}
	}
	s.send(again...)
}

// again shares a key once more. The server counts the shares of a session, and does
// not tell the count: to undo a failure unseen could take another lease's share.
// So lock and token are two statements in one message, whose results tell how far
// it came.
func (s *session) again(o *op) *statement {
	sql := "EXECUTE " + stAgain + "(" + strconv.FormatInt(o.id(), 10) + "); EXECUTE " + stToken
	return &statement{sql: sql, ops: []*op{o}, do: (*session).lockedAgain}
}

func (s *session) lockedAgain(st *statement) {
	o := st.ops[0]
	has := len(st.values) > 0 && st.values[0] == 1
	switch {
	case st.err == nil && len(st.values) == 2 && has:
		s.decide(o, st.values[1], st.sent)
		return
	case has:
		s.send(&statement{name: stUnshare, id: o.id()})
	case st.err == nil:
		s.decide(o, -1, st.sent)
		return
	}
	s.refuse(o, st.err)
}

// decide settles a request: with a token it is granted, with none refused.
func (s *session) decide(o *op, token int64, sent time.Time) {
	if token <= 0 {
		s.b.table.drop(o.claim)
		o.finish(&driver.HeldError{Server: s.server.id})
		return
	}
	l := s.grant(o.claim, o.ttl, token, sent)
	s.b.table.granted(o.claim, true)
	switch {
	case o.gone:
		s.unlock(l)
		o.finish(errTimeout)
	case !time.Now().Before(driver.Expires(sent, o.ttl)):
		s.unlock(l)
		o.finish(errTimeout)
	default:
		o.lease = l
		o.finish(nil)
	}
}

// grant makes the lease of a grant that was asked for at sent.
func (s *session) grant(c *claim, ttl time.Duration, token int64, sent time.Time) *lease {
	l := &lease{s: s, claim: c, ttl: ttl, start: sent}
	if s.b.schema != "" {
		l.fence = uint64(token)
		for seen := s.b.highest.Load(); l.fence > seen && !s.b.highest.CompareAndSwap(seen, l.fence); {
			seen = s.b.highest.Load()
		}
	}
	s.leases[l] = struct{}{}
	s.holds[c.id]++
	if end := l.end(); len(s.leases) == 1 || end.Before(s.nextEnd) {
		s.nextEnd = end
	}
	s.schedule(time.Now())
	return l
}

func (s *session) refuse(o *op, e *pgconn.PgError) {
	s.b.table.drop(o.claim)
	o.finish(verdict(e, s.server.capacity, len(s.leases)))
}

func (s *session) refuseAll(st *statement) {
	for _, o := range st.ops {
		s.refuse(o, st.err)
	}
}

// unlocked takes the answer to unlocks: false says that the lock was not there.
func (s *session) unlocked(st *statement) {
	if st.err != nil || len(st.values) != len(st.ops) { // never seen; the server then frees them all
		s.failUnanswered(st.ops)
		s.fail(fmt.Errorf("postgres: unlock: %w", orRows(st.err)), false)
		return
	}
	for i, o := range st.ops {
		l := o.lease
		delete(s.leases, l)
		if s.holds[l.claim.id]--; s.holds[l.claim.id] <= 0 {
			delete(s.holds, l.claim.id)
		}
		s.b.table.drop(l.claim)
		if st.values[i] != 1 {
			o.finish(driver.ErrLost)
			continue
		}
		o.finish(nil)
	}
}

func orRows(e *pgconn.PgError) error {
	if e == nil {
		return fmt.Errorf("the number of rows is wrong")
	}
	return e
}

// drown ends requests whose answer cannot be read.
func (s *session) failUnanswered(ops []*op) {
	for _, o := range ops {
		if o.claim != nil {
			s.b.table.drop(o.claim)
		}
		o.finish(fmt.Errorf("postgres: an answer could not be read"))
	}
}

// beaten takes the answer to a heartbeat: it comes from the same server process, or
// a pooler that does not pool sessions has given the locks to somebody else.
func (s *session) beaten(st *statement) {
	if st.err == nil && len(st.values) == 1 && st.values[0] == int64(s.w.pid) {
		return
	}
	s.fail(fmt.Errorf("postgres: the pooler has changed the server process under a session"), false)
}
