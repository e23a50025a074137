package redisnode

import (
	"context"

	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/drivers/internal/async"
)

// A Client adapts a client library for a Node. Its methods are safe for concurrent use. They
// return the error reply of a server as a ServerError.
type Client interface {
	// Exec runs calls, all for one server, in one round trip, and sets the Reply and Err of
	// each. It returns at ctx's deadline if the library can; ctx is never cancelled.
	Exec(ctx context.Context, calls []*Call)

	// Servers returns every server that holds locks. Like Do of a Server, it may return later
	// than at the end of ctx.
	Servers(ctx context.Context) ([]Server, error)

	// Subscribe opens a connection for pub/sub, subscribes to a channel, and from then on reports to
	// sink. In a Cluster the connection is to the server of the key's slot.
	Subscribe(ctx context.Context, sink Sink, key, channel string) (Subscription, error)

	// Close closes the library's client, unless it belongs to the application.
	Close() error
}

// A Server is one server, for inspection.
type Server interface {
	Addr() string
	// Do runs one command. Replies are strings, int64s, nil, and []any and maps of them.
	Do(ctx context.Context, args ...string) (any, error)
}

// each calls fn for every server that holds locks, one after the other. At the end of ctx it
// returns, and so do the servers' commands.
func each(ctx context.Context, c Client, wg *async.Tracker, fn func(Server) error) error {
	servers, err := heed(ctx, wg, func() ([]Server, error) { return c.Servers(ctx) })
	if err != nil {
		return NotSent(err)
	}
	for _, s := range servers {
		if err := fn(heeding{s, wg}); err != nil {
			return err
		}
	}
	return nil
}

// heeding is a server whose commands return at the end of their context.
type heeding struct {
	Server
	wg *async.Tracker
}

func (h heeding) Do(ctx context.Context, args ...string) (any, error) {
	return heed(ctx, h.wg, func() (any, error) { return h.Server.Do(ctx, args...) })
}

// heed returns at the end of do or of ctx, of which a library may not hear. A call that is then
// under way ends by its own timeouts, or with the client.
func heed[T any](ctx context.Context, wg *async.Tracker, do func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	wg.Go(func() {
		var r result
		defer func() { done <- r }()
		defer base.Contain(&r.err)
		r.value, r.err = do()
	})
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
