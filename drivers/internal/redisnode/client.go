package redisnode

import (
	"context"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/pipeline"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/pubsub"
)

// A Client adapts a client library for a Node. Its methods are safe for concurrent use. They
// return the error reply of a server as a ServerError.
type Client interface {
	// Exec runs calls, all for one server, in one round trip, and sets the Reply and Err of
	// each. It returns at ctx's deadline if the library can; ctx is never cancelled.
	Exec(ctx context.Context, calls []*Call)

	// Each calls fn for every server that holds locks, one after the other.
	Each(ctx context.Context, fn func(ctx context.Context, s Server) error) error

	// Subscribe opens a connection for pub/sub, subscribes to channels, at least one, and from
	// then on reports to sink. In a Cluster the connection is to the server of the last
	// channel's slot.
	Subscribe(ctx context.Context, sink Sink, channels []string) (Subscription, error)

	// Close closes the library's client, unless it belongs to the application.
	Close() error
}

// A Server is one server, for inspection.
type Server interface {
	Addr() string
	// Do runs one command. Replies are strings, int64s, nil and []any of them.
	Do(ctx context.Context, args ...string) (any, error)
}

// Sink and Subscription are the types of pub/sub.
type (
	Sink         = pubsub.Sink
	Subscription = pubsub.Subscription
)

// Call, Direct and ServerError are the types of calls.
type (
	Call        = pipeline.Call
	Direct      = pipeline.Direct
	ServerError = pipeline.ServerError
)

// ErrNotSent marks the errors of calls that sent no byte.
var ErrNotSent = pipeline.ErrNotSent

// NotSent marks err with ErrNotSent.
func NotSent(err error) error { return pipeline.NotSent(err) }

// Reply returns an error reply without the secrets that it may quote: see pipeline.Reply.
func Reply(text string, secrets ...string) ServerError { return pipeline.Reply(text, secrets...) }

// Transaction returns the commands before and after a script with Behind set, which leave no
// lasting write. The reply of the last command is a list that ends with the script's reply.
func Transaction(behind string) (before [2][]string, after []string) {
	return [2][]string{{"MULTI"}, {"SET", behind, "", "PX", "1"}}, []string{"EXEC"}
}
