package zookeeper

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver/base"
)

// clockAge is how long the clock of this process carries on the servers' time.
const clockAge = 30 * time.Second

// A clock has the leader's time, from its last answer with a time, plus the marker's advance.
// The sum does not fall when the leader's clock does, so new counters can begin at it.
type clock struct {
	mu      sync.Mutex
	server  time.Time
	local   time.Time
	looked  time.Time // when the marker was read
	advance time.Duration
}

// now returns the leader's time plus the advance.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server.Add(time.Since(c.local) + c.advance)
}

// set stores the time of an answer, in milliseconds since 1970. A time that is earlier than
// expected changes nothing: if the leader's clock has fallen, the next look sees it.
func (c *clock) set(ms int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := time.UnixMilli(ms); at.After(c.server.Add(time.Since(c.local))) {
		c.server, c.local = at, time.Now()
	}
}

// fresh reports whether the marker was read a short time ago.
func (c *clock) fresh() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.looked) < clockAge
}

// look reads the marker, unless that was done a short time ago. One caller looks while the others
// wait, because the advance does not cover a time that was seen longer ago. The marker shows that
// the layout is this driver's. look then writes the marker, because a write shows the leader's
// time. If that time is before the latest that the marker knows, by any client, the leader's
// clock has fallen, and counters with larger tokens may have been deleted: so look raises the
// advance by as much, and by the time for which other clients do not look. The first write
// keeps the latest time in the marker's data, so a fall is not forgotten if this client ends
// between its two writes, or another client writes there. Sessions share a look, though their members may
// be behind each other: it is about the leader's clock, and a write fails on a path that is not there.
func (b *Backend) look(ctx context.Context, s *session) error {
	if b.clock.fresh() {
		return nil
	}
	return b.looking.Do(ctx, &b.calls, func(ctx context.Context) error { return b.lookNow(ctx, s) })
}

func (b *Backend) lookNow(ctx context.Context, s *session) error {
	ctx, cancel := b.bound(ctx)
	defer cancel()
	for !b.clock.fresh() {
		got, err := s.again(ctx, get(b.marker(), 0))
		if errors.Is(err, errNoNode) {
			if err = b.makePath(ctx, s); err == nil {
				continue
			}
		}
		if err != nil {
			return err
		}
		m, ok := parseMark(got.data)
		if !ok {
			return base.UnknownLayout(b.opt.Path)
		}
		m.latest = max(m.latest, got.stat.changed)
		wrote, err := s.ask(ctx, set(b.marker(), m.value(), got.stat.version))
		if now := wrote.stat.changed; err == nil && now < m.latest {
			fall := time.Duration(m.latest-now)*time.Millisecond + clockAge + time.Second
			if fall > most-m.advance {
				return errEnd
			}
			m = mark{m.advance + fall, now}
			wrote, err = s.ask(ctx, set(b.marker(), m.value(), wrote.stat.version))
		}
		switch {
		case errors.Is(err, errNoNode), errors.Is(err, errBadVersion):
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue // another client did it meanwhile
		case err != nil:
			return err
		}
		b.clock.mu.Lock()
		b.clock.server, b.clock.local, b.clock.advance = time.UnixMilli(wrote.stat.changed), time.Now(), m.advance
		b.clock.looked = b.clock.local
		b.clock.mu.Unlock()
	}
	return nil
}

// makePath makes the nodes of the path, and the marker.
func (b *Backend) makePath(ctx context.Context, s *session) error {
	path := ""
	for part := range strings.SplitSeq(strings.Trim(b.marker(), "/"), "/") {
		path += "/" + part
		var data []byte
		if path == b.marker() {
			data = mark{}.value()
		}
		_, err := s.again(ctx, create(opCreate, path, data, b.acl, 0))
		if err != nil && !errors.Is(err, errNodeExists) {
			return err
		}
	}
	return nil
}
