package redlocktest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// A Harness tells the suite how to reach the backend under test. Open is all that
// it needs; everything else makes it sharper or gives it time.
type Harness struct {
	// Open returns a new backend on the same lock space, as another process
	// would have it. The suite closes what it opened. Open may be called concurrently.
	Open func() (driver.Backend, error)

	// Prefix is what the backends put before every key. The longest key that the
	// suite asks for is that much shorter.
	Prefix string

	// TTL is the shortest TTL at which the backend's timing can be relied upon; zero
	// means 500 ms, or the backend's minimum where that is more. The cases that wait for
	// an expiry take about this long each, and run side by side.
	TTL time.Duration

	// Grace is how much longer than the TTL the backend keeps a lock (lock-delay).
	Grace time.Duration

	// Timeout bounds every case; zero means 2 min, since machines are busy. When it is over the watchdog
	// prints the goroutines and closes the backends under test.
	Timeout time.Duration

	// Short asks for fewer repetitions of the same checks. Run sets it under go test -short.
	Short bool

	// Virtual says that the backends live in this process, do no I/O, and hold no mutex
	// while they wait: Run then runs each case in the virtual time of testing/synctest, in
	// which waiting costs nothing.
	Virtual bool

	// Driver and URL are the driver under test and the URL that opens a backend with it.
	// With them the suite checks Driver.Open itself: parameters, prefixes, secrets, and that
	// it does no I/O. URL may hold Secret. If Open is nil, backends are opened by them too.
	Driver driver.Driver
	URL    string

	// OpenWithClock opens a client whose wall clock is this far ahead of the machine's, or
	// behind it where that is negative. Without it, nothing is known of drivers that use the
	// client's clock.
	OpenWithClock func(ahead time.Duration) (driver.Backend, error)

	// Process is Open, with the backend in a process of its own, which Stress kills and stops:
	// see StartClient. Without it Stress has all its clients in this process.
	Process func() (*Client, error)

	// Connections counts the connections that the backends of this harness have. Without it
	// the suite counts the sockets of this process where the system can list them (Linux).
	Connections func() (int, error)

	// Notices returns what the backends have told by Config.Notify so far. It is searched for
	// Secret.
	Notices func() []driver.Notice

	// FutureLayout changes what is stored into the layout of a release that is unknown to this
	// one; undo changes it back. Backends that are opened in between must refuse to lock.
	FutureLayout func() (undo func() error, err error)

	// Skip leaves out cases, by their name ("wait/order") or the name of their group
	// ("wait"), each for a reason, which is printed. A name that is unknown and a
	// reason that is empty are failures.
	Skip map[string]string

	// Only is the name of a case, or of a group, that alone is run; empty: all are.
	Only string

	// Residue lists what is stored of locks that are held, by any name that contains
	// the key; what outlives a lock, a counter say, is left out. Without it the suite
	// asks the backend's Inspector, and without that it only tries to lock again.
	Residue func(ctx context.Context) ([]string, error)

	// Secret is a password with which the backends were opened. It may occur in no
	// error, no notice, no Info and no String.
	Secret string

	// IgnoreGoroutines names functions ("example.com/client.(*Pool).reap"): a
	// goroutine with one of them on its stack is no leak. It is meant for a client
	// that the harness shares between backends and closes itself.
	IgnoreGoroutines []string

	// Faults are what the harness can break; nil means nothing.
	Faults *Faults

	// quiet leaves the search for leaks out, for the suite's own tests, of which
	// several run at once.
	quiet bool

	// steps bounds the search for the order of a history's calls; zero: defaultSteps.
	steps int64

	_ struct{}
}

// Faults are hooks that break what stands between the backends and their locks, or
// the servers themselves. Any may be nil: the cases that need it are not run.
// Each returns once the fault is in effect. The suite ends every fault it began
// before the case ends, and runs nothing else meanwhile.
type Faults struct {
	// Kill ends the servers at once, as kill -9 does; for a quorum as many as rule
	// a majority out. Restart starts them again, with or without what they remembered.
	Kill    func() error
	Restart func(memory bool) error

	// Pause stops the servers while their connections stay open, as SIGSTOP does; for
	// a quorum as many as rule a majority out. Resume lets them go on, and what was
	// sent to them takes effect.
	Pause  func() error
	Resume func() error

	// Partition lets nothing through between b and the servers, in either direction,
	// without an error on the connection. Heal ends that.
	Partition func(b driver.Backend) error
	Heal      func(b driver.Backend) error

	// Slow delays every answer to b by d; zero ends that.
	Slow func(b driver.Backend, d time.Duration) error

	// DropReply lets b's next request take effect and loses the answer to it: the
	// connection breaks instead.
	DropReply func(b driver.Backend) error

	// EndSession ends b's sessions on the server, for backends with the Session
	// feature: pg_terminate_backend, say.
	EndSession func(b driver.Backend) error

	_ struct{}
}

const (
	defaultTTL     = 500 * time.Millisecond
	defaultTimeout = 2 * time.Minute
)

// complete returns h with its defaults, or what is wrong with it.
func (h Harness) complete() (Harness, error) {
	if h.Open == nil && h.Driver != nil {
		h.Open = func() (driver.Backend, error) {
			return h.Driver.Open(&driver.Config{DSN: h.URL, Prefix: h.Prefix})
		}
	}
	if h.Open == nil {
		return h, errors.New("redlocktest: Harness.Open is nil")
	}
	if h.Timeout == 0 {
		h.Timeout = defaultTimeout
	}
	if h.Faults == nil {
		h.Faults = &Faults{}
	}
	known := map[string]bool{}
	for _, g := range groups {
		known[g.name] = true
		for _, c := range g.cases {
			known[g.name+"/"+c.name] = true
		}
	}
	wrong := func(field, format string, args ...any) (Harness, error) {
		return h, fmt.Errorf("redlocktest: %w", driver.Invalid("Harness."+field, format, args...))
	}
	for _, name := range slices.Sorted(maps.Keys(h.Skip)) {
		if !known[name] {
			return wrong("Skip", "names %q, which is no case", name)
		}
		if h.Skip[name] == "" {
			return wrong("Skip", "gives no reason for %q", name)
		}
	}
	if h.Only != "" && !known[h.Only] {
		return wrong("Only", "names %q, which is no case", h.Only)
	}
	return h, nil
}

// skipped returns why the case is left out, and "" where it is not.
func (h *Harness) skipped(group, name string) string {
	if reason := h.Skip[group+"/"+name]; reason != "" {
		return reason
	}
	return h.Skip[group]
}

// times returns how often a check is repeated: n times, or a third as often in short runs.
func (h *Harness) times(n int) int {
	if h.Short {
		return (n + 2) / 3
	}
	return n
}

// cleanupTimeout is how long the suite waits for clean-up: for releases, for Close, for the
// end of goroutines.
func (h *Harness) cleanupTimeout() time.Duration { return min(10*time.Second, h.Timeout) }
