package redlocktest

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
)

var leakCases = []testCase{
	{name: "connections-backend", needs: []condition{counts}, do: backendConnections},
	{name: "connections-cancelled", needs: []condition{counts}, do: cancelledConnections},
	{name: "waits", needs: []condition{waits, realTime}, do: waitsLeak},
	{name: "goroutines-lease", needs: []condition{realTime}, do: leaseGoroutines},
}

// connections returns a function that counts the connections of the backends, or nil.
func (s *suite) connections() func() (int, error) {
	if s.h.Connections != nil {
		return s.h.Connections
	}
	if s.h.Virtual || s.h.quiet {
		return nil
	}
	if _, err := sockets(); err != nil {
		return nil
	}
	return sockets
}

// sockets counts the sockets of this process. Code besides the case may open some, so too many
// of them are only a suspicion.
func sockets() (int, error) {
	const folder = "/proc/self/fd"
	all, err := os.ReadDir(folder)
	n := 0
	for _, f := range all {
		if to, err := os.Readlink(filepath.Join(folder, f.Name())); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n, err
}

// now returns a number.
func (r *run) now(of func() (int, error)) int {
	n, err := of()
	r.must(err, "count")
	return n
}

// count returns the number as soon as it does not exceed most, or has not fallen for a while.
func (r *run) count(of func() (int, error), most int) int {
	still := min(time.Second, r.h.cleanupTimeout()/12)
	n := r.now(of)
	for low, end := n, time.Now().Add(still); n > most && time.Now().Before(end) && r.pause(poll); n = r.now(of) {
		if n < low {
			low, end = n, time.Now().Add(still)
		}
	}
	return n
}

// grows does something in several rounds, and reports whether the number grew by more than few in each of
// them: what is kept for later fills up once, a leak grows. It returns the last number.
func (r *run) grows(of func() (int, error), few int, round func()) (last int, grew bool) {
	const rounds = 3
	before := r.now(of)
	for range rounds {
		round()
		now := r.count(of, before+few)
		if now <= before+few {
			return now, false
		}
		before = now
	}
	return before, true
}

// backendConnections opens, uses and closes backends, and checks that their connections are closed.
func backendConnections(r *run) {
	connections := r.suite.connections()
	r.release(r.grant(r.client(), driver.Request{Key: r.key()}))
	before := r.now(connections)
	const n, few = 12, 4
	for range n {
		b := r.open()
		r.release(r.grant(b, driver.Request{Key: r.key()}))
		r.close(b)
	}
	if left := r.count(connections, before+few) - before; left > few {
		r.suspect(noLeaks, "%d backends were opened and closed, and %d connections are left", n, left)
	}
}

// cancelledConnections cancels many attempts, at an instant that adapts to the duration of attempts,
// which is longer while connections are made, so that about half of them end before their
// cancellation.
func cancelledConnections(r *run) {
	connections, b := r.suite.connections(), r.client()
	after := r.howLong(b)
	const n = 36
	if left, grew := r.grows(connections, 4, func() {
		for i := range n {
			ctx, cancel := context.WithCancel(context.Background())
			t := time.AfterFunc(rand.N(2*after), cancel)
			l, err := r.tryCtx(ctx, b, driver.Request{Key: r.key(), Wait: i%2 == 0})
			if err == nil {
				r.releaseCtx(ctx, l)
				after = max(after*4/5, time.Microsecond)
			} else {
				after = min(after*5/4+1, time.Second)
			}
			t.Stop()
			cancel()
		}
	}); grew {
		r.suspect(noLeaks, "the connections grow with every %d attempts that are cancelled, to %d: the connection of a cancelled attempt is neither closed nor used again", n, left)
	}
}

// leaseGoroutines checks that no lease has a goroutine of its own, while it is held or after
// its release. A backend may keep workers for later requests, and one round may add any number
// of them: only a number that grows in every round is a leak.
func leaseGoroutines(r *run) {
	b := r.client()
	goroutines := func() (int, error) { return runtime.NumGoroutine(), nil }
	const n = 60
	var leases []*lease
	hold := func() {
		for range n {
			leases = append(leases, r.grant(b, driver.Request{Key: r.key()}))
		}
	}
	release := func() {
		for _, l := range leases {
			r.release(l)
		}
		leases = nil
	}
	hold()                 // makes connections
	r.count(goroutines, 0) // those of earlier cases may be ending
	if left, grew := r.grows(goroutines, n/2, hold); grew {
		r.suspect(noLeaks, "%d leases are held, and the goroutines grow with every %d, to %d: one for all of a backend does\n%s", len(leases), n, left, commonStack())
	}
	release()
	if left, grew := r.grows(goroutines, n/2, func() { hold(); release() }); grew {
		r.suspect(noLeaks, "the goroutines grow with every %d leases that were released, to %d\n%s", n, left, commonStack())
	}
}

// waitsLeak ends many waits, and checks that neither goroutines nor connections are left of them.
func waitsLeak(r *run) {
	a, b := r.pair()
	const n = 40
	keys := make([]string, n)
	for i := range keys {
		keys[i] = r.key()
		r.grant(a, driver.Request{Key: keys[i]})
	}
	round := func() {
		ctx, cancel := context.WithCancel(r.ctx)
		defer cancel()
		if _, ok := b.(driver.Watcher); ok {
			r.together(n, func(i int) { r.watch(ctx, b, keys[i]) })
		}
		ended := r.async(func() {
			r.together(n, func(i int) { _, _ = r.tryCtx(ctx, b, driver.Request{Key: keys[i], Wait: true}) })
		})
		r.pause(20 * time.Millisecond)
		cancel()
		r.join(ended)
	}
	count := func() (int, error) {
		goroutines, connections := runtime.NumGoroutine(), r.suite.connections()
		if connections == nil {
			return goroutines, nil
		}
		open, err := connections()
		return goroutines + open, err
	}
	round() // makes connections
	r.count(count, 0)
	if left, grew := r.grows(count, n/2, round); grew {
		r.suspect(noLeaks, "the goroutines or the connections grow with every %d waits that are cancelled, to %d in all\n%s", n, left, commonStack())
	}
}

// commonStack returns the stack that most goroutines have.
func commonStack() string {
	var text strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&text, 1) // the most frequent stack comes first
	first, _, _ := strings.Cut(text.String(), "\n\n")
	return first
}
