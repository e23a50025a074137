package redisnode

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"

	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
)

// A router knows which process serves which slot: one process for a single instance, several in
// a Cluster.
type router struct {
	node  *Node
	guard *guard
	hello *lane

	slots []atomic.Pointer[process] // one, or one per slot

	mu      sync.Mutex
	runs    map[string]*process
	flights map[flight]chan struct{} // closed when the asking caller is done
}

// A flight is a task that one caller does for all: ask which process serves a slot (lua.Ops), or
// load a script there.
type flight struct {
	slot int
	op   lua.Op
}

// maxRuns bounds how many processes are remembered: more than a Cluster has shards.
const maxRuns = 1024

func newRouter(n *Node) *router {
	slots := 1
	if n.cfg.Cluster {
		slots = names.Slots
	}
	return &router{
		node: n, guard: n.guard, hello: newLane(n),
		slots: make([]atomic.Pointer[process], slots),
		runs:  map[string]*process{}, flights: map[flight]chan struct{}{},
	}
}

func (f *router) slot(key string) int {
	if !f.node.cfg.Cluster {
		return 0
	}
	return names.Slot(key)
}

// known returns the process that served key last, or nil.
func (f *router) known(key string) *process { return f.slots[f.slot(key)].Load() }

// process returns the process that serves key, and asks for its run_id and clock on first
// contact: nothing is sent before the clock is known.
func (f *router) process(ctx context.Context, key string) (p *process, asked bool, err error) {
	slot := f.slot(key)
	for {
		if p := f.slots[slot].Load(); p != nil {
			return p, false, nil
		}
		if p := f.guess(slot); p != nil {
			return p, false, nil
		}
		done, err := f.enter(ctx, flight{slot, lua.Ops})
		if err != nil {
			return nil, false, err
		}
		if done != nil {
			defer done()
			p, err = f.ask(ctx, key)
			return p, true, err
		}
	}
}

// guess returns the process that serves the nearest known slots on both sides, if it is the
// same: nodes of a Cluster have ranges. A wrong guess is harmless, because another process does
// not know the scripts of this one; it costs one call.
func (f *router) guess(slot int) *process {
	var below, above *process
	for i := slot - 1; i >= 0 && below == nil; i-- {
		below = f.slots[i].Load()
	}
	for i := slot + 1; i < len(f.slots) && above == nil; i++ {
		above = f.slots[i].Load()
	}
	if below != above || below == nil {
		return nil
	}
	f.slots[slot].CompareAndSwap(nil, below)
	return below
}

// enter begins a flight, which done ends. If such a flight is under way, it waits for its end
// and returns no done.
func (f *router) enter(ctx context.Context, k flight) (done func(), err error) {
	f.mu.Lock()
	other, busy := f.flights[k]
	if !busy {
		mine := make(chan struct{})
		f.flights[k] = mine
		f.mu.Unlock()
		return func() {
			f.mu.Lock()
			delete(f.flights, k)
			f.mu.Unlock()
			close(mine)
		}, nil
	}
	f.mu.Unlock()
	if err := async.Await(ctx, other); err != nil {
		return nil, NotSent(err)
	}
	return nil, nil
}

// ask asks which process serves key now.
func (f *router) ask(ctx context.Context, key string) (*process, error) {
	c := &Call{Text: lua.Hello, Keys: []string{key}}
	p, err := f.meet(ctx, f.hello, c, key, 0)
	if err != nil {
		return nil, err
	}
	if policy, _ := text(c.Reply, 2); policy != "" {
		f.guard.evicts(policy)
	}
	return p, nil
}

// meet sends c, and notes from the reply's elements at i and behind which process answered, and its
// clock.
func (f *router) meet(ctx context.Context, l *lane, c *Call, key string, i int) (*process, error) {
	sent := time.Now()
	if err := l.do(ctx, c); err != nil {
		return nil, NotSent(err)
	}
	run, ok := text(c.Reply, i)
	us, fine := number(c.Reply, i+1)
	if !ok || !fine || strings.ContainsAny(run, "'\\\n") {
		return nil, NotSent(errors.New("the server answers a handshake in an unknown way"))
	}
	return f.serves(key, run, us, sent, time.Now()), nil
}

// serves stores which server process has the key, and the reading of its clock. run is the
// process's run ID.
func (f *router) serves(key, run string, us int64, sent, received time.Time) *process {
	f.mu.Lock()
	p := f.runs[run]
	if p == nil {
		if !f.node.cfg.Cluster || len(f.runs) >= maxRuns {
			for _, gone := range f.runs { // their idle workers would outlive Close
				gone.lane.retire()
			}
			clear(f.runs)
		}
		p = &process{run: run, bound: bound{scripts: lua.Bind(run)}, lane: newLane(f.node)}
		f.runs[run] = p
	}
	f.mu.Unlock()
	p.clock.observe(us, sent, received)
	f.slots[f.slot(key)].Store(p)
	return p
}

// close lets nothing more be sent.
func (f *router) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hello.close()
	for _, p := range f.runs {
		p.lane.close()
	}
}

// A process is one server process, named by its run_id, with its scripts, its clock, and the
// calls under way to it.
type process struct {
	run string // "" if INFO is not allowed
	bound
	guarded atomic.Pointer[guarded] // nil before the first handshake for a restart guard
	clock   clock
	lane    *lane
}

// guarded is the knowledge about the guard of one server process, under one set of terms.
type guarded struct {
	terms   quorum.Terms // immutable
	encoded string       // the terms, as the server has them
	bound                // to the process and the terms

	ready     atomic.Bool  // a handshake succeeded: the scripts may be called
	announced atomic.Int64 // the reported end of its quarantine

	reviewed  atomic.Int64 // Unix time in ns of the last look at the settings
	reviewing atomic.Bool  // one is under way
}

// bound are the scripts that are bound to one server process, for one guard or for none.
type bound struct {
	scripts [lua.Ops]lua.Script
	until   atomic.Int64 // no batch is sent before this Unix time in ns
}

// rest lets no batch be sent for a while.
func (b *bound) rest(d time.Duration) { b.until.Store(time.Now().Add(d).UnixNano()) }
