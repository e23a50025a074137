package redisnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
)

// An inDoubtCall is a call that may have taken effect, or may until its not-after.
type inDoubtCall struct {
	call     *Call
	sent     *answer // the same call
	proposed int64   // the token that it proposes
	process  *process
	notAfter int64         // by the server process's clock, in µs
	life     time.Duration // how long the server keeps a lock of it
}

// cut reports whether the call ended because its connection ended, not by a timeout, after
// which the request may still arrive.
func (d inDoubtCall) cut() bool {
	select {
	case <-d.call.done:
	default:
		return false
	}
	var slow net.Error
	var reply ServerError
	return !errors.As(d.call.Err, &reply) && !errors.Is(d.call.Err, context.DeadlineExceeded) && !errors.Is(d.call.Err, context.Canceled) &&
		!(errors.As(d.call.Err, &slow) && slow.Timeout())
}

// answered reports whether the server has answered the call by now.
func (n *Node) answered(d inDoubtCall) bool {
	select {
	case <-d.call.done:
		return d.call.Err == nil || !n.unknown(d.call.Err)
	default:
		return false
	}
}

// unknown is a counter before a grant that is not known; zero: there was none.
const unknown = -1

// voted reads the grant of an acquire: see lua/acquire.lua and lua/batch.lua. fence is 0 if the
// reply is garbled.
func (a *answer) voted(proposed int64) (fence, clock, before int64) {
	if a.Reply == nil {
		switch {
		case proposed == 0:
			return a.Number, a.Number, unknown
		case a.inBatch:
			return proposed, a.Number, unknown
		case a.Number>>22 > 0:
			before = proposed - a.Number>>22
		}
		return proposed, proposed + a.Number&(1<<22-1) - 1<<19, before
	}
	fence, _ = number(a.Reply, 1)
	clock, _ = number(a.Reply, 2)
	switch digits, ok := text(a.Reply, 3); {
	case !ok:
		return fence, clock, unknown
	case digits != "":
		if n, err := strconv.ParseInt(digits, 10, 64); err != nil || n <= 0 {
			return fence, clock, unknown
		} else {
			before = n
		}
	}
	return fence, clock, before
}

// votes returns the last grant of these calls whose counter before is known. It is unknown as long
// as one of the calls is not answered, because it may be granted later.
func (n *Node) votes(calls []inDoubtCall) (fence, before int64) {
	before = unknown
	for _, d := range calls {
		if !n.answered(d) || n.cfg.Repeats {
			return 0, unknown
		}
		if code := d.sent.code(); d.call.Err != nil || code != 1 && (code <= 1 || d.call.Reply != nil) {
			continue
		}
		if f, _, b := d.sent.voted(d.proposed); b != unknown {
			fence, before = f, b
		}
	}
	return fence, before
}

// errAgain says that a request must be repeated.
var errAgain = errors.New("once more")

// errTooLate refuses a request that was late twice.
var errTooLate = &driver.RefusedError{RetryAfter: 10 * time.Millisecond, Reason: "the request reached the server after its deadline, by the server's clock"}

// replicated returns an error unless enough replicas have the script's writes.
func (n *Node) replicated(a *answer) error {
	if a.Acked >= int64(n.cfg.WaitReplicas) {
		return nil
	}
	return &driver.RefusedError{RetryAfter: soon, Reason: fmt.Sprintf("%s: %d of %d replicas (wait_replicas) have confirmed the lock within %v", n.cfg.Addr, a.Acked, n.cfg.WaitReplicas, n.cfg.CallTimeout/2)}
}

// notAfter returns the local instant in microseconds of the process' clock.
func notAfter(p *process, t time.Time) string { return strconv.FormatInt(p.clock.at(t), 10) }

// fenced returns the KEYS of a script that may set the counter.
func (n *Node) fenced(keys []string, lock, counter, key string, q *quorum.Info) []string {
	keys = append(keys, lock, counter, n.mark(key))
	if q != nil {
		keys = append(keys, n.guard.meta)
	}
	return keys
}

// aside runs do in the background: a clean-up, or a started call that needs something that takes
// time.
func (n *Node) aside(do func()) {
	n.work.Add()
	n.wg.Go(func() {
		defer n.work.Done()
		do()
	})
}

// try runs the script once, with these ARGV.
func (n *Node) try(ctx context.Context, o lua.Op, keys []string, args ...string) (*answer, error) {
	return n.router.run(async.Within(ctx, n.cfg.CallTimeout), &request{op: o, keys: keys, script: fixed(args)})
}

// fixed is a list of ARGV that do not depend on the server process.
type fixed []string

func (f fixed) args(*process, []string) []string { return f }

// latest returns the latest end of a started call: that of its term, or d from now.
func latest(term async.Term, d time.Duration) time.Time {
	end := time.Now().Add(d)
	if t, ok := term.Deadline(); ok && t.Before(end) {
		return t
	}
	return end
}
