package redisnode

import (
	"context"
	"errors"
)

// A Client is what a client library does for a Node. Its methods are safe for
// concurrent use. They return the error reply of a server as a ServerError.
type Client interface {
	// Exec runs calls, all of them for one node, in one round trip, and sets the
	// Reply and Err of each. It returns at ctx's deadline if the library can; ctx is
	// never cancelled.
	Exec(ctx context.Context, calls []*Call)

	// Each calls fn for every server that holds locks, one after the other.
	Each(ctx context.Context, fn func(ctx context.Context, s Server) error) error

	// Subscribe opens a connection for pub/sub, sends the subscription to channels,
	// of which there is one at least, and reports to sink from then on. In a Cluster the
	// connection is to the server of the last channel's slot.
	Subscribe(ctx context.Context, sink Sink, channels []string) (Subscription, error)

	// Close ends the library's client, if it is ours.
	Close() error
}

// A Server is one server, for inspection.
type Server interface {
	Addr() string
	// Do runs one command. Replies are strings, int64s, nil and []any of them.
	Do(ctx context.Context, args ...string) (any, error)
}

// A Sink is told what a Subscription sees. Its functions may lock what Add and
// Remove are called under: call them from a goroutine of the subscription's own.
type Sink struct {
	Subscribed func(channel string) // the server confirmed it
	Message    func(channel, payload string)
	Broken     func(error) // nothing more will come; called once at the most
}

// A Subscription is one connection in pub/sub mode.
type Subscription interface {
	// Add and Remove send the command, and do not wait for its answer.
	Add(ctx context.Context, channels ...string) error
	Remove(ctx context.Context, channels ...string) error
	// Close ends it; Broken may or may not be called.
	Close()
}

// A ServerError is an error reply of a server: "NOSCRIPT No matching script."
type ServerError string

func (e ServerError) Error() string { return string(e) }

// ErrNotSent marks errors of calls of which no byte was sent.
var ErrNotSent = errors.New("not sent")

// NotSent marks err: no byte was sent.
func NotSent(err error) error { return &notSent{err} }

// notSent says that nothing was sent because of err.
type notSent struct{ err error }

func (e *notSent) Error() string        { return e.err.Error() }
func (e *notSent) Unwrap() error        { return e.err }
func (e *notSent) Is(target error) bool { return target == ErrNotSent }

// before is the failure of a call that comes before an operation: nothing of that was sent.
func before(err error) error { return &notSent{err} }

// Transaction returns the commands that stand before and after a script that is Behind a
// key, and writes nothing that lasts. The last one's reply, a list, ends with the script's.
func Transaction(behind string) (before [2][]string, after []string) {
	return [2][]string{{"MULTI"}, {"SET", behind, "", "PX", "1"}}, []string{"EXEC"}
}
