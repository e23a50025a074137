package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/redlock-go/redlock/driver"
)

// An attempt is one Acquire.
type attempt struct {
	b     *Backend
	dir   string // of the lock
	req   driver.Request
	s     *session
	name  string // how our entry's name begins
	node  string // our entry; empty: none is known
	doubt bool   // there may be one nevertheless
	fence uint64
	sent  time.Time         // when the last write was sent that found our entry
	seen  *driver.HeldError // the last holder that was seen
	watch watch
	// container is the transaction that made the lock's container.
	container int64
}

// A watch is one that was set on the entry before ours.
type watch struct {
	node string
	gone <-chan zk.Event
}

// Acquire makes one attempt, or takes a place in the line of waiters.
func (b *Backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if err := b.info.Check(b.opt.Prefix, req); err != nil {
		return nil, err
	}
	if err := b.begin(); err != nil {
		return nil, err
	}
	defer b.wg.Done()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("zookeeper: %w", err)
	}
	a := &attempt{b: b, dir: b.Path(req.Key), req: *req}
	var err error
	if req.Wait {
		err = a.wait(ctx)
	} else {
		err = a.try(ctx)
	}
	if err == nil {
		return newLease(a), nil
	}
	a.leave()
	if errors.Is(err, driver.ErrHeld) {
		return nil, err
	}
	err = b.failed(ctx, a.s, "acquire", err)
	if a.seen != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", err, a.seen)
	}
	return nil, err
}

// leave gives up our entry, and the session.
func (a *attempt) leave() {
	if a.s == nil {
		return
	}
	if a.node != "" || a.doubt {
		a.s.abandon(orphan{dir: a.dir, node: a.node, name: a.name})
	}
	a.node, a.doubt = "", false
	a.s.leave()
}

// begin joins a session, and looks at what is stored.
func (a *attempt) begin(ctx context.Context) (err error) {
	if a.s, err = a.b.session(a.req.TTL); err != nil {
		return err
	}
	if _, err = a.s.await(ctx); err != nil {
		return err
	}
	if err = a.s.suits(a.req.TTL); err != nil {
		return err
	}
	return a.b.look(ctx, a.s)
}

// try makes one attempt. Its entry is made where nobody keeps us out, so that nobody finds
// entries before his own that come to nothing.
func (a *attempt) try(ctx context.Context) error {
	ctx, cancel := a.b.bound(ctx)
	defer cancel()
	if err := a.begin(ctx); err != nil {
		return err
	}
	if err := a.enter(ctx, false); err != nil {
		return err
	}
	first, err := a.first(ctx)
	switch {
	case err != nil:
		return err
	case first == nil:
		return nil
	}
	// Another library's came in between: it does not change the container's version.
	node := a.node
	if _, err := again(ctx, a.s, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(node, -1) }); err == nil {
		a.node = ""
	}
	return a.held(ctx, first)
}

// enter makes our entry: at the end of the line, or only where nobody keeps us out. Each
// entry changes the version of the container's data, which holds the largest token: of several
// that come at the same time one comes first, and the others look again.
func (a *attempt) enter(ctx context.Context, queue bool) error {
	a.name = a.b.entryName(newGUID(), a.req.Mode)
	known, err := a.inspect(ctx, queue, false)
	if err != nil {
		return err
	}
	for {
		a.fence = driver.NextFence(max(known.token, a.b.clock.below()), a.req.FenceFloor, a.b.clock.now())
		sent := time.Now()
		a.doubt = true
		a.container = known.container
		made, err := ask(ctx, a.s, func(c *zk.Conn) ([]zk.MultiResponse, error) {
			return c.Multi(
				&zk.SetDataRequest{Path: a.dir, Data: counterValue(a.fence), Version: known.version},
				&zk.CreateRequest{Path: a.dir + "/" + a.name, Data: entryValue(a.fence, a.req.Owner), Acl: a.b.acl, Flags: zk.FlagEphemeral | zk.FlagSequence},
			)
		})
		if err == nil && (len(made) != 2 || made[0].Stat == nil || made[1].String == "") {
			return errors.New("the server's answer is odd")
		}
		switch {
		case err == nil:
			a.node, a.sent, a.doubt = made[1].String, sent, false
			a.b.clock.set(made[0].Stat.Mtime)
			a.b.remember(a.dir, counter{token: a.fence, version: made[0].Stat.Version, container: known.container})
			return nil
		case broken(err) && ctx.Err() == nil:
			found, err := a.found(ctx)
			if err != nil || found {
				return err
			}
		case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrBadVersion):
			a.doubt = false
		default:
			a.doubt = !definite(err)
			return err
		}
		// The answer was a write's: what is read from now on is not older.
		if known, err = a.inspect(ctx, queue, true); err != nil {
			return err
		}
	}
}

// found looks for the entry whose answer was lost.
func (a *attempt) found(ctx context.Context) (bool, error) {
	sent := time.Now()
	if err := a.s.settle(ctx); err != nil {
		return false, err
	}
	name, err := a.s.search(ctx, orphan{dir: a.dir, name: a.name})
	if err != nil {
		return false, err
	}
	a.doubt = false
	if name == "" {
		return false, nil
	}
	a.node, a.sent = a.dir+"/"+name, sent
	return true, nil
}

// inspect reads the container, which it makes if need be. Unless we queue, the error is who
// keeps us out. current: what is read is not older than our last write.
func (a *attempt) inspect(ctx context.Context, queue, current bool) (counter, error) {
	type state struct {
		children []string
		stat     *zk.Stat
	}
	for {
		got, err := again(ctx, a.s, func(c *zk.Conn) (state, error) {
			children, stat, err := c.Children(a.dir)
			return state{children, stat}, err
		})
		if errors.Is(err, zk.ErrNoNode) {
			if err = a.make(ctx); err == nil {
				continue
			}
		}
		if err != nil {
			return counter{}, err
		}
		line := parseLine(got.children)
		if first := before(line, a.req.Mode); first != nil && !queue {
			if !current { // the member that was asked may be late
				if err := a.b.sync(ctx, a.s, a.dir); err != nil {
					return counter{}, err
				}
				current = true
				continue
			}
			return counter{}, a.held(ctx, &line[0])
		}
		if c, ok := a.b.remembered(a.dir); ok && c.version == got.stat.Version && c.container == got.stat.Czxid {
			return c, nil
		}
		all, err := read(ctx, a.s, a.dir)
		if errors.Is(err, zk.ErrNoNode) || err == nil && (all.stat.Version != got.stat.Version || all.stat.Czxid != got.stat.Czxid) {
			continue // it changed in between
		}
		if err != nil {
			return counter{}, err
		}
		token, err := parseCounter(all.data)
		return counter{token: token, version: all.stat.Version, container: all.stat.Czxid}, err
	}
}

// sync makes the member that serves the session catch up.
func (b *Backend) sync(ctx context.Context, s *session, path string) error {
	_, err := again(ctx, s, func(c *zk.Conn) (string, error) { return c.Sync(path) })
	return err
}

// make makes the lock's container, which the servers delete some time after its last entry.
func (a *attempt) make(ctx context.Context) error {
	for {
		_, err := again(ctx, a.s, func(c *zk.Conn) (string, error) {
			return c.CreateContainer(a.dir, counterValue(a.b.clock.below()), zk.FlagContainer, a.b.acl)
		})
		switch {
		case err == nil, errors.Is(err, zk.ErrNodeExists):
			return nil
		case !errors.Is(err, zk.ErrNoNode):
			return err
		}
		a.b.forgetLook()
		if err := a.b.look(ctx, a.s); err != nil {
			return err
		}
	}
}

// held returns the verdict that the first of the line has the lock, and notes it.
func (a *attempt) held(ctx context.Context, first *entry) error {
	a.seen = &driver.HeldError{}
	if got, err := read(ctx, a.s, a.dir+"/"+first.name); err == nil {
		a.seen.Holder, _ = parseEntry(first.name, got.data, got.stat.Czxid)
	}
	return a.seen
}

// line reads the line, and returns it with our place. The error is errGone if our entry is not
// in it: what a session reads is not older than what it wrote. It is so too if our entry came
// into a container that was made after we had looked, since our token goes by the one before.
func (a *attempt) line(ctx context.Context) ([]entry, int, error) {
	type state struct {
		children []string
		stat     *zk.Stat
	}
	got, err := again(ctx, a.s, func(c *zk.Conn) (state, error) {
		children, stat, err := c.Children(a.dir)
		return state{children, stat}, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil, 0, errGone
	}
	if err != nil {
		return nil, 0, err
	}
	line := parseLine(got.children)
	at := find(line, a.name)
	if at < 0 || got.stat.Czxid != a.container {
		return nil, 0, errGone
	}
	return line, at, nil
}

// first returns the first of the line if anybody keeps us out, and nil if we have the lock.
func (a *attempt) first(ctx context.Context) (*entry, error) {
	line, at, err := a.line(ctx)
	if err != nil {
		return nil, err
	}
	if before(line[:at], a.req.Mode) == nil {
		return nil, nil
	}
	return &line[0], nil
}

// checkInterval is how often one who waits looks by itself, at most.
const checkInterval = 5 * time.Second

// wait takes a place in the line and returns when it is ours.
func (a *attempt) wait(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(a.b.ctx, stop)()
	for {
		if err := a.queue(ctx); err != nil {
			return err
		}
		err := a.sleep(ctx)
		if !errors.Is(err, errGone) && !errors.Is(err, errExpired) && !errors.Is(err, errAbandoned) {
			return err
		}
		a.leave() // the session ended while no server could be reached: to the end of the line
		a.s = nil
	}
}

// queue takes a place at the end of the line.
func (a *attempt) queue(ctx context.Context) error {
	ctx, cancel := a.b.bound(ctx)
	defer cancel()
	if err := a.begin(ctx); err != nil {
		return err
	}
	return a.enter(ctx, true)
}

// sleep waits until nobody is before us who keeps us out, and confirms that our entry is there.
// A look that fails is tried again: the place is kept as long as the session lives.
func (a *attempt) sleep(ctx context.Context) error {
	alone, fresh := false, true // our entry was confirmed by what made it
	for {
		next, err := a.turn(ctx)
		switch {
		case err == nil && next == nil && fresh && time.Since(a.sent) < a.req.TTL/10:
			return nil
		case err == nil && next == nil:
			alone = true
			err = a.confirm(ctx)
		}
		fresh = false
		switch {
		case err == nil && alone:
			return nil
		case err == nil:
			if err := a.await(ctx, next); err != nil {
				return err
			}
		case errors.Is(err, errGone), errors.Is(err, errExpired), errors.Is(err, errAbandoned), errors.Is(err, driver.ErrClosed), definite(err):
			return err
		default:
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		alone = false
	}
}

// turn returns the entry to wait for, nil if nobody keeps us out. It notes the holder when
// it looks for the first time.
func (a *attempt) turn(ctx context.Context) (*entry, error) {
	ctx, cancel := a.b.bound(ctx)
	defer cancel()
	line, at, err := a.line(ctx)
	if err != nil {
		return nil, err
	}
	next := before(line[:at], a.req.Mode)
	if next != nil && a.seen == nil {
		_ = a.held(ctx, &line[0]) // for when ctx ends
	}
	return next, nil
}

// confirm finds our entry by a write: the leader answers for the session, and a majority for the
// leader.
func (a *attempt) confirm(ctx context.Context) error {
	ctx, cancel := a.b.bound(ctx)
	defer cancel()
	sent, err := confirm(ctx, a.s, a.node)
	if err == nil {
		a.sent = sent
	}
	return err
}

// confirm returns when the request was sent that found the entry. The error is errGone if it is
// not there.
func confirm(ctx context.Context, s *session, node string) (sent time.Time, err error) {
	sent, err = again(ctx, s, func(c *zk.Conn) (time.Time, error) {
		sent := time.Now()
		_, err := c.Multi(&zk.CheckVersionRequest{Path: node, Version: -1})
		return sent, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		err = errGone
	}
	return sent, err
}

// await waits until an entry is gone, or for a while.
func (a *attempt) await(ctx context.Context, next *entry) error {
	node := a.dir + "/" + next.name
	if a.watch.node != node { // else it is watched already
		bounded, cancel := a.b.bound(ctx)
		gone, err := again(bounded, a.s, func(c *zk.Conn) (<-chan zk.Event, error) {
			_, _, gone, err := c.GetW(node)
			return gone, err
		})
		cancel()
		if errors.Is(err, zk.ErrNoNode) {
			return nil
		}
		if err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return nil // it is tried again, after a look
		}
		a.watch = watch{node, gone}
	}
	look := time.NewTimer(checkInterval)
	defer look.Stop()
	select {
	case <-a.watch.gone:
		a.watch = watch{}
		return nil
	case <-look.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
