package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// The backend has one list of connections. A request goes to one that serves its class, else to an
// idle one, else to a new one; if there may be no more, to one of another class. A wait takes an
// idle one or a new one.

// The fits of a connection for a request, the best first.
const (
	fitClass = iota
	fitIdle
	fitNew   // from here on it is better to open another
	fitOther // of another class
	fitNot   // it takes no requests
)

// fit returns how well a connection serves a class, after this silence; the mutex is held.
func (c *conn) fit(class, silence time.Duration) int {
	switch {
	case c.end != nil || c.waiting || silence > suspectAfter:
		return fitNot
	case c.idle():
		return fitIdle
	case c.class == class:
		return fitClass
	}
	return fitOther
}

// A view is what the list offers for a request or a wait.
type view struct {
	best    *conn // that serves the class, with its fit; nil: none takes requests
	fit     int
	idle    *conn // the last idle one
	waiting int
	full    bool // there may be no more connections
	open    bool // a connection takes requests and is open
}

// view looks at the list; b.mu is held. Silent connections do not count: as many more may be opened
// in their place.
func (b *Backend) view(class time.Duration) view {
	v := view{fit: fitNot}
	alive := 0
	for _, c := range b.conns {
		c.mu.Lock()
		silence := c.silence()
		fit := c.fit(class, silence)
		if silence <= suspectAfter {
			alive++
		}
		if c.waiting {
			v.waiting++
		}
		if fit == fitIdle {
			v.idle = c
		}
		if fit < v.fit {
			v.best, v.fit = c, fit
		}
		v.open = v.open || fit < fitNot && c.w != nil
		c.mu.Unlock()
	}
	v.full = alive >= b.opt.MaxConns || len(b.conns) >= 2*b.opt.MaxConns
	return v
}

// conn returns the connection for a request of this class. It waits for ended connections to be
// forgotten.
func (b *Backend) conn(ctx context.Context, class time.Duration) (*conn, error) {
	for {
		if c, err := b.connNow(class); c != nil || err != nil {
			return c, err
		}
		if !base.Pause(ctx, 10*time.Millisecond) {
			return nil, context.Cause(ctx)
		}
	}
}

// connNow is conn, but returns nil if there is no connection now.
func (b *Backend) connNow(class time.Duration) (*conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, driver.ErrClosed
	}
	v := b.view(class)
	if v.full || v.best != nil && (v.fit < fitNew || b.refusedLately()) {
		return v.best, nil
	}
	return b.open(class, false), nil
}

// refusedLately reports whether a connection could not be opened lately. No other is then opened if
// there is one.
func (b *Backend) refusedLately() bool { return time.Since(b.refused) < 5*time.Second }

// reserve takes an idle connection, or a new one, for a wait. A fifth of the connections, and at
// least one, serves requests. It returns nil if there is none.
func (b *Backend) reserve(w *want) *conn {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.view(classOf(w.ttl))
	full := v.waiting >= b.opt.MaxConns-max(1, b.opt.MaxConns/5)
	switch {
	case b.closed:
		return nil
	case !full && v.idle != nil && len(b.conns)-v.waiting > 1 && v.idle.reserve(): // another one serves requests
		return v.idle
	case full || v.full:
		if key := w.key; b.lacked.IsZero() {
			b.calls.Go(func(context.Context) {
				b.report(driver.Notice{Kind: driver.NoticeDegraded, Key: key, Detail: fmt.Sprintf("more keys are waited for than there are connections for waiting (max_conns=%d): keys without one are polled", b.opt.MaxConns)})
			})
		}
		b.lacked = time.Now()
		return nil
	case b.refusedLately():
		return nil
	}
	return b.open(classOf(w.ttl), true)
}

// scarce reports whether a wait has lately found no connection.
func (b *Backend) scarce() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Since(b.lacked) < scarceFor
}

// reserve takes a connection that is idle for a wait.
func (c *conn) reserve() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting, c.used = c.idle(), time.Now()
	return c.waiting
}

// open adds a connection to the list, and opens it in the background, because its caller may give
// up before that is done. b.mu is held.
func (b *Backend) open(class time.Duration, waiting bool) *conn {
	c := newConn(b, class)
	c.waiting = waiting
	b.conns = append(b.conns, c)
	b.calls.Go(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		w, srv, err := b.connect(ctx)
		if err == nil {
			c.start(w, srv)
			return
		}
		b.forget(c)
		b.mu.Lock()
		b.refused = time.Now()
		if b.view(0).open { // its requests go to another
			err = errEnded
		}
		b.mu.Unlock()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fail(err)
		close(c.opened)
	})
	return c
}

// connectTimeout bounds the making of a connection, including its setup.
const connectTimeout = 10 * time.Second

func (b *Backend) connect(ctx context.Context) (*wireConn, server, error) {
	if b.warning != "" {
		b.warned.Do(func() { b.report(driver.Notice{Kind: noticeInClear, Detail: b.warning}) })
	}
	c, err := b.factory(ctx)
	if err != nil {
		return nil, server{}, connectError(err)
	}
	w, srv, err := b.setUp(ctx, c)
	if err != nil {
		closeConn(c)
	}
	return w, srv, err
}

func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Close(ctx)
}

// forget removes an ended connection.
func (b *Backend) forget(c *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns = slices.DeleteFunc(b.conns, func(x *conn) bool { return x == c })
}

// all returns the backend's connections.
func (b *Backend) all() []*conn {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.conns)
}
