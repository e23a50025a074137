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

// A Harness tells the suite how to reach the backend under test. Only Open is required; the
// other fields make more checks possible, or give them more time.
type Harness struct {
	// Open returns a new backend on the same lock space, as another process
	// would have it. The suite closes what it opened. Open may be called concurrently.
	Open func() (driver.Backend, error)

	// Closed is called with each backend that Open has opened, when the suite has closed it, at the end
	// of its case. A harness ends there what it began for that backend, such as a proxy. It may be
	// called again with the same backend.
	Closed func(b driver.Backend) error

	// Prefix is what the backends put before every key. The suite's longest key is shorter by
	// the length of Prefix.
	Prefix string

	// TTL is the shortest TTL at which the backend's timing can be relied upon; zero means 500 ms.
	// A backend whose minimum is longer gets its minimum. The cases that wait for an expiry take
	// about this long each, and run side by side.
	TTL time.Duration

	// Grace is how much longer than the TTL the backend keeps a lock (lock-delay).
	Grace time.Duration

	// Timeout bounds every case; zero means 1 min, which is enough on a busy machine; while you write
	// a driver, 20 s shows you sooner what never comes. After it the watchdog prints the goroutines
	// and closes the backends under test. Once a case has failed because it waited in vain, the
	// later ones have a sixth of it. Run also ends in time before go test's own -timeout.
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

	// OpenWithClock opens a client whose wall clock is ahead of the machine's by this time, or
	// behind it if negative. Without it the suite cannot check whether tokens depend on the
	// client's clock.
	OpenWithClock func(ahead time.Duration) (driver.Backend, error)

	// Process is Open, with the backend in a process of its own, which the suite and Stress kill
	// and stop: see StartClient. Without it all clients are in this process. On Linux (amd64)
	// the wall clock of each process is wrong by seconds to hours, as another machine's may be.
	Process func() (*Client, error)

	// LocalClock says that all clients must have the same wall clock: they are on one machine, as
	// those of a file are. Processes then keep the machine's.
	LocalClock bool

	// Connections counts the connections that the backends of this harness have. Without it
	// the suite counts the sockets of this process where the system can list them (Linux).
	Connections func() (int, error)

	// Notices returns the notices that the backends have sent to Config.Notify so far. The
	// suite searches them for Secret.
	Notices func() []driver.Notice

	// FutureLayout changes the stored data to an unknown layout, as of a later release; undo
	// changes it back. Backends that are opened in between must refuse to lock.
	FutureLayout func() (undo func() error, err error)

	// Skip leaves out cases, by their name ("wait/order") or the name of their group
	// ("wait"), each for a reason, which is printed. A name that is unknown and a
	// reason that is empty are failures.
	Skip map[string]string

	// Only is the name of the only case, or group of cases, to run; empty: run all.
	Only string

	// Residue lists the stored data of held locks whose names contain the key, without data
	// that outlives a lock, such as a counter. Without it the suite asks the backend's
	// Inspector, and without that it only tries to lock again.
	Residue func(ctx context.Context) ([]string, error)

	// Secret is a password with which the backends were opened. It must not occur in any error,
	// notice, Info or String.
	Secret string

	// IgnoreGoroutines names functions ("example.com/client.(*Pool).reap"): a
	// goroutine with one of them on its stack is no leak. It is meant for a client
	// that the harness shares between backends and closes itself. (Those of package
	// redlocktest/server are never leaks.)
	IgnoreGoroutines []string

	// Faults are what the harness can break; nil means nothing.
	Faults *Faults

	// quiet leaves out the search for leaks, for the suite's own tests, several of which run at
	// once.
	quiet bool

	// end is when the test's time is over; zero: never. told reports failures at once; nil: nobody.
	end  time.Time
	told func(f *Failure)

	// steps bounds the search for the order of a history's calls; zero: defaultSteps.
	steps int64

	_ struct{}
}

// Faults are hooks that break servers, or the connections to them. Any may be nil: the cases
// that need it are not run. Each returns when the fault is in effect. The suite ends every
// fault before its case ends, and runs no other case meanwhile, except those that break the links
// of other clients.
type Faults struct {
	// Kill ends the servers at once, as kill -9 does; for a quorum so many that no majority is
	// left. Restart starts them again, with or without their data.
	Kill    func() error
	Restart func(memory bool) error

	// Pause stops the servers while their connections stay open, as SIGSTOP does; for a quorum
	// so many that no majority is left. Resume lets them go on; they then read the requests
	// that were sent meanwhile.
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

	// Reset breaks all connections of b at once, with an error on each; new ones are served.
	Reset func(b driver.Backend) error

	// EndSession ends b's sessions on the server, for backends with FeatureSession, for example
	// by pg_terminate_backend.
	EndSession func(b driver.Backend) error

	// Forget ends a minority of a quorum's servers and starts them again without their data. It is for
	// quorums that guard against that: a lease may be lost early, and Lookup may not see it, but no other
	// is granted before the loss is told. ForgetEvery is the least time between two calls: longer than
	// such a server does not vote, so that there is a majority.
	Forget      func() error
	ForgetEvery time.Duration

	_ struct{}
}

const (
	defaultTTL     = 500 * time.Millisecond
	defaultTimeout = time.Minute
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

// closed tells the harness that a backend was closed.
func (h *Harness) closed(b driver.Backend) error {
	if h.Closed == nil {
		return nil
	}
	return h.Closed(b)
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

// cleanupTimeout is how long the suite waits for each clean-up: releases, Close, the end of
// goroutines.
func (h *Harness) cleanupTimeout() time.Duration { return min(10*time.Second, h.Timeout) }
