package zookeeper

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// A counter is what is known of a lock's container.
type counter struct {
	token   uint64 // the largest that was given
	version int32  // of the container's data: each new entry changes it
	// container is the transaction that made the container: versions begin anew with each.
	container int64
}

// mostCounters bounds what is remembered of locks.
const mostCounters = 1000

func (b *Backend) remember(dir string, c counter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.counters) >= mostCounters {
		clear(b.counters)
	}
	b.counters[dir] = c
}

func (b *Backend) remembered(dir string) (counter, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, ok := b.counters[dir]
	return c, ok
}

// clockAge is for how long the servers' time is carried on by the clock of this process.
const clockAge = 30 * time.Second

// A clock is the leader's time, as of its last answer with one, and what new counters begin
// above.
type clock struct {
	mu     sync.Mutex
	server time.Time
	local  time.Time
	looked time.Time // at the marker
	floor  uint64
}

// now is the leader's time.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server.Add(time.Since(c.local))
}

// set notes the time of an answer, in milliseconds since 1970.
func (c *clock) set(ms int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server, c.local = time.UnixMilli(ms), time.Now()
}

// below is what new counters begin above.
func (c *clock) below() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.floor
}

// look makes sure that the marker was read in a while, which says that the layout is ours, and
// that the leader's time is known. The time is that of a write. If it is before that of the
// write before, by whomever, the leader's clock has fallen, and what was given in between may
// be in counters that are not there any more: new ones begin above.
func (b *Backend) look(ctx context.Context, s *session) error {
	b.clock.mu.Lock()
	fresh := !b.clock.looked.IsZero() && time.Since(b.clock.looked) < clockAge
	b.clock.mu.Unlock()
	if fresh {
		return nil
	}
	for {
		got, err := read(ctx, s, b.marker())
		if errors.Is(err, zk.ErrNoNode) {
			if err = b.makePath(ctx, s); err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		floor, err := parseCounter(got.data)
		if err != nil {
			return err
		}
		at := got.stat.Mtime
		wrote, err := b.mark(ctx, s, floor, got.stat.Version)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			continue
		case errors.Is(err, zk.ErrBadVersion):
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue // somebody else did it meanwhile
		case err != nil:
			return err
		}
		if wrote.Mtime < at {
			fallen := uint64(max(at, 0))*1000 + uint64((clockAge+time.Second)/time.Microsecond)
			if fallen > floor {
				if wrote, err = b.mark(ctx, s, fallen, wrote.Version); err != nil {
					continue
				}
				floor = fallen
			}
		}
		b.clock.set(wrote.Mtime)
		b.clock.mu.Lock()
		b.clock.looked, b.clock.floor = time.Now(), floor
		b.clock.mu.Unlock()
		return nil
	}
}

// mark writes the marker.
func (b *Backend) mark(ctx context.Context, s *session, floor uint64, version int32) (*zk.Stat, error) {
	return ask(ctx, s, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(b.marker(), counterValue(floor), version) })
}

// forgetLook has the marker looked at again: its folder is not there.
func (b *Backend) forgetLook() {
	b.clock.mu.Lock()
	defer b.clock.mu.Unlock()
	b.clock.looked = time.Time{}
}

// makePath makes the nodes of the path, and the marker.
func (b *Backend) makePath(ctx context.Context, s *session) error {
	path := ""
	for part := range strings.SplitSeq(strings.Trim(b.marker(), "/"), "/") {
		path += "/" + part
		var data []byte
		if path == b.marker() {
			data = counterValue(0)
		}
		_, err := again(ctx, s, func(c *zk.Conn) (string, error) { return c.Create(path, data, 0, b.acl) })
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
	return nil
}
