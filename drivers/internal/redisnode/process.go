package redisnode

import (
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
)

// A process is one server process, named by its run_id, with its scripts, its clock, and the
// calls under way to it.
type process struct {
	run     string // "" if INFO is not allowed
	scripts [lua.Ops]lua.Script
	batches batcher
	guarded atomic.Pointer[guarded] // nil before the first handshake for a restart guard
	clock   clock
	lane    *lane
}

// guarded is the knowledge about the guard of one server process, under one set of terms.
type guarded struct {
	terms   quorum.Terms        // immutable
	encoded string              // the terms, as the server has them
	scripts [lua.Ops]lua.Script // bound to the process and the terms
	batches batcher

	ready     atomic.Bool  // a handshake succeeded: the scripts may be called
	announced atomic.Int64 // the reported end of its quarantine

	reviewed  atomic.Int64 // Unix time in ns of the last look at the settings
	reviewing atomic.Bool  // one is under way
}

// A batcher has the batch script of one server process, for one guard or for none.
type batcher struct {
	until atomic.Int64 // no batch is sent before this Unix time in ns
}

// ready reports whether a batch may be sent.
func (b *batcher) ready(now time.Time) bool { return now.UnixNano() >= b.until.Load() }

// rest lets no batch be sent for a while.
func (b *batcher) rest(d time.Duration) { b.until.Store(time.Now().Add(d).UnixNano()) }
