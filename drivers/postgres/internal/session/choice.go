package session

import (
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres/internal/claims"
)

// The functions of this file answer the backend: which session serves a request best, and which
// locks the sessions hold.

// slow is the age of an unanswered statement from which new requests prefer another session.
const slow = 250 * time.Millisecond

// The costs of sending a request to a session; each outweighs those before it. The least is the
// length of the queue. A session of a longer class would free the lock later if the holder
// dies; another must first set a longer class; another is slow.
const (
	costLonger = 1 << (40 + 2*iota)
	costRaise
	costSlow
	CostNone = costLonger // below this the session has the right class, or no leases
)

// Cost returns the cost of sending a request of this class to a session; false: it takes no
// requests.
func (s *Session) Cost(class time.Duration) (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil || s.waiting || s.suspect {
		return 0, false
	}
	cost := int64(min(len(s.queue), 1<<16-1))
	switch {
	case s.class == class, s.idle():
	case s.class > class:
		cost += costLonger + s.class.Milliseconds()<<16
	default:
		cost += costRaise
	}
	if len(s.round) > 0 && time.Since(s.round[0].sent) > slow {
		cost += costSlow
	}
	return cost, true
}

// A Holding describes a lease to operators.
type Holding struct {
	Claim *claims.Claim
	Fence uint64
	TTL   time.Duration // until it ends, unless it is renewed
}

// Holdings returns the leases of the session that are not being released.
func (s *Session) Holdings() []Holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Holding
	for l := range s.leases {
		if l.leaving == nil {
			all = append(all, Holding{l.claim, l.fence, max(0, time.Until(driver.Expires(l.start, l.ttl)))})
		}
	}
	return all
}

// PID returns the id of the session's server process, and zero if the session has ended.
func (s *Session) PID() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return 0
	}
	return s.w.PID()
}

// Suspect reports whether the server has been silent for too long: the session then takes no
// new requests.
func (s *Session) Suspect() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.suspect
}
