package zookeeper

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// An attempt is one call of Acquire.
type attempt struct {
	place
	req   driver.Request
	fence uint64
	seen  *driver.HeldError // the holder that was seen last
	// container is the transaction that made the lock's container.
	container int64
	// ahead are the entries before the attempt's own, if known.
	ahead []entry
	known bool
}

// Acquire makes one attempt, or with req.Wait waits in the key's queue.
func (b *Backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	call, err := b.calls.BeginAcquire(ctx, b.info, b.opt.Prefix, req)
	if err != nil {
		return nil, err
	}
	defer call.End()
	a := &attempt{place: place{b: b, dir: b.Path(req.Key)}, req: *req}
	if req.Wait {
		err = a.wait(call)
	} else {
		err = a.try(call)
	}
	if err == nil {
		return newLease(a), nil
	}
	err = b.failed(call, a.s, err)
	a.leave()
	return nil, base.Waited(err, a.seen)
}

// leave gives up the attempt's entry, and the session.
func (a *attempt) leave() {
	if a.s != nil {
		a.abandon()
		a.s = nil
	}
}

// try makes one attempt. It makes an entry only if no other entry excludes it, so that no
// waiter stands behind an entry that is given up at once.
func (a *attempt) try(ctx context.Context) error {
	if err := a.enter(ctx, false); err != nil {
		return err
	}
	ahead, err := a.earlier(ctx)
	if err != nil || before(ahead, a.req.Mode) == nil {
		return err
	}
	// An entry of another library came meanwhile, which does not change the container's version.
	if _, err := a.s.again(ctx, remove(a.node, -1)); err == nil {
		a.node = ""
	}
	return a.held(ctx, &ahead[0])
}

// enter joins a session, and makes the attempt's entry: at the end of the queue, or only if no other
// entry excludes it. Each entry changes the version of the container's data, which holds the largest
// token. Of several concurrent attempts one succeeds, and the others look again.
func (a *attempt) enter(ctx context.Context, wait bool) (err error) {
	a.s = a.b.session(a.req.TTL)
	if _, err = a.s.await(ctx); err != nil {
		return err
	}
	if err = a.s.suits(a.req.TTL); err != nil {
		return err
	}
	if err = a.b.look(ctx, a.s); err != nil {
		return err
	}
	a.name = entryName(rand.Text(), a.req.Mode)
	known, err := a.inspect(ctx, wait, false)
	if err != nil {
		return err
	}
	for {
		last := known.token + uint64(max(a.req.Tokens, 1)) - 1 // below the last token
		if last >= driver.MaxFence {
			return errEnd
		}
		a.fence = driver.NextFence(last, a.req.FenceFloor, a.b.clock.now())
		a.doubt = true
		a.container = known.container
		made, err := a.s.ask(ctx, multi(
			set(a.dir, counterValue(a.fence), known.version),
			create(opCreate, a.dir+"/"+a.name, []byte(base.EntryValue(layout, a.fence, a.req.Owner, a.req.Tokens)), a.b.acl, ephemeral|sequential),
		))
		if err == nil && (made.stat.made == 0 || made.node == "") {
			return errHostile
		}
		switch {
		case err == nil:
			a.node, a.sent, a.doubt = made.node, made.sent, false
			a.ahead, a.known = known.entries, !known.unread && made.stat.made == known.container && made.stat.births == known.births
			a.b.clock.set(made.stat.changed)
			return nil
		case errors.Is(err, errBroken) && ctx.Err() == nil:
			if err := a.find(ctx); err != nil || a.node != "" {
				return err
			}
		case errors.Is(err, errNoNode), errors.Is(err, errBadVersion):
			a.doubt = false
		default:
			a.doubt = !definite(err)
			return err
		}
		// The answer came from a write, so later reads are not older.
		if known, err = a.inspect(ctx, wait, true); err != nil {
			return err
		}
	}
}

// A queue has the entries of a lock's container, and the container's data.
type queue struct {
	token     uint64 // the largest given token
	version   int32  // the version of the container's data: each new entry changes it
	container int64  // the transaction that made the container, whose versions begin anew
	births    int32
	entries   []entry // unless unread
	unread    bool
}

// Servers number the entries of a container from 0 to 2^31-1, and give all later ones the same number.
// Shortly before, a container is made anew, and while it has entries it is refused.
const lastEntries = 1<<31 - 1<<16

// inspect reads the container, and makes it if it is missing. Unless the attempt waits, the
// error names the holder that excludes it. current says that reads are not older than the
// session's last write.
func (a *attempt) inspect(ctx context.Context, wait, current bool) (queue, error) {
	for {
		got, err := a.s.again(ctx, get(a.dir, 0))
		if errors.Is(err, errNoNode) {
			if err = a.make(ctx); err == nil {
				continue
			}
		}
		if err != nil {
			return queue{}, err
		}
		if int64(uint32(got.stat.births)/2) >= a.b.lastEntries {
			if got.stat.living > 0 {
				return queue{}, &driver.RefusedError{RetryAfter: time.Second, Reason: "a key under " + a.b.opt.Path + " has had almost 2^31 entries, and its node can be made anew " +
					"only while it has none: release its lock, and let its waiters end"}
			}
			_, err := a.s.again(ctx, remove(a.dir, got.stat.version)) // its tokens go on from the time
			if err != nil && !errors.Is(err, errNoNode) && !errors.Is(err, errBadVersion) && !errors.Is(err, errNotEmpty) {
				return queue{}, err
			}
			continue
		}
		token, err := a.b.counter(got.data)
		known := queue{token: token, version: got.stat.version, container: got.stat.made, births: got.stat.births}
		if known.unread = wait && got.stat.living > 0; known.unread || got.stat.living == 0 || err != nil {
			return known, err
		}
		all, err := a.s.again(ctx, children(a.dir))
		if errors.Is(err, errNoNode) || err == nil && (all.stat.version != known.version || all.stat.made != known.container) {
			continue // the container changed meanwhile
		}
		if err != nil {
			return queue{}, err
		}
		known.entries, known.births = parseQueue(all.children), all.stat.births
		switch {
		case before(known.entries, a.req.Mode) == nil:
			return known, nil
		case current:
			return queue{}, a.held(ctx, &known.entries[0])
		}
		if _, err := a.s.catchUp(ctx, a.dir); err != nil {
			return queue{}, err
		}
		current = true
	}
}

// make makes the lock's container, which the servers delete some time after its last entry.
func (a *attempt) make(ctx context.Context) error {
	for {
		_, err := a.s.again(ctx, create(opContainer, a.dir, counterValue(driver.NextFence(0, 0, a.b.clock.now())), a.b.acl, container))
		switch {
		case err == nil, errors.Is(err, errNodeExists):
			return nil
		case !errors.Is(err, errNoNode):
			return err
		}
		if err := a.b.makePath(ctx, a.s); err != nil {
			return err
		}
	}
}

// held returns the verdict that the first entry of the queue has the lock, and notes it.
func (a *attempt) held(ctx context.Context, first *entry) error {
	a.seen = &driver.HeldError{}
	if got, err := a.s.again(ctx, get(a.dir+"/"+first.name, 0)); err == nil {
		a.seen.Holder = parseEntry(first.name, got).Owner
	}
	return a.seen
}

// earlier returns the entries before the attempt's own. It reads them, unless they are known since
// the attempt made its entry. The error is errGone if the attempt's entry is not in the queue, because
// a session's reads are not older than its writes. It is also errGone if the entry is in a
// container that was made after the attempt read the old one, because its token depends on the
// old one.
func (a *attempt) earlier(ctx context.Context) ([]entry, error) {
	if a.known {
		a.known = false
		return a.ahead, nil
	}
	all, err := a.s.again(ctx, children(a.dir))
	if errors.Is(err, errNoNode) {
		return nil, errGone
	}
	if err != nil {
		return nil, err
	}
	entries := parseQueue(all.children)
	at := find(entries, a.name)
	if at < 0 || all.stat.made != a.container {
		return nil, errGone
	}
	return entries[:at], nil
}

// wait joins the key's queue and returns when it has the lock.
func (a *attempt) wait(ctx context.Context) error {
	for {
		bounded, cancel := a.b.bound(ctx)
		err := a.enter(bounded, true)
		cancel()
		if err != nil {
			return err
		}
		err = a.sleep(ctx)
		if !errors.Is(err, errGone) && !errors.Is(err, errExpired) {
			return err
		}
		a.leave() // the session ended while no server could be reached: go to the end of the queue
	}
}

// checkInterval is the longest time between two looks of a waiter.
const checkInterval = 5 * time.Second

// sleep waits until no earlier entry excludes the attempt. It repeats a failed look: the attempt keeps
// its place as long as its session lives.
func (a *attempt) sleep(ctx context.Context) error {
	for {
		gone, err := a.stand(ctx)
		pause := checkInterval
		switch {
		case err == nil && gone == nil:
			return nil
		case err == nil:
		case errors.Is(err, errGone), errors.Is(err, errExpired), errors.Is(err, driver.ErrClosed), definite(err):
			return err
		default:
			pause = 20 * time.Millisecond
		}
		look := time.NewTimer(pause)
		select {
		case <-gone:
		case <-look.C:
		case <-ctx.Done():
		}
		if look.Stop(); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// stand returns a channel that is closed when the attempt may have the lock, nil if it has the lock. It
// confirms then that its entry exists, unless that was made lately: the lease may count from the write
// that made it. It notes the holder at its first look.
func (a *attempt) stand(ctx context.Context) (gone <-chan struct{}, err error) {
	ctx, cancel := a.b.bound(ctx)
	defer cancel()
	for {
		ahead, err := a.earlier(ctx)
		if err != nil {
			return nil, err
		}
		next := before(ahead, a.req.Mode)
		if next == nil {
			if time.Since(a.sent) >= a.req.TTL/10 {
				err = a.confirm(ctx)
			}
			return nil, err
		}
		got, gone, err := a.s.watch(ctx, a.dir+"/"+next.name)
		switch {
		case errors.Is(err, errNoNode):
			continue
		case err == nil && a.seen == nil && got != nil && next.name == ahead[0].name:
			a.seen = &driver.HeldError{Holder: parseEntry(next.name, *got).Owner}
		case err == nil && a.seen == nil:
			_ = a.held(ctx, &ahead[0]) // used if the wait's context ends
		}
		return gone, err
	}
}
