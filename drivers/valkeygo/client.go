package valkeygo

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/redisnode"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/resp"
)

// client adapts valkey-go to redisnode's interface.
type client struct {
	own     bool // made from options, on first use, and closed by Close
	options valkey.ClientOption
	conns   *resp.Conns

	life context.Context // of its connections, if the driver made it
	end  context.CancelFunc

	mu     sync.Mutex // held while it connects, so that callers wait for one attempt
	valkey valkey.Client
	made   time.Time // when the last attempt to connect ended…
	err    error     // …and its error
}

var _ redisnode.Client = (*client)(nil)

// newClient returns a client that the driver makes. It connects at the first call.
func newClient(options valkey.ClientOption, network string, conns *resp.Conns) *client {
	c := &client{own: true, options: options, conns: conns}
	c.life, c.end = context.WithCancel(context.Background())
	// Connections end with this client, because the library's own Close waits for those that are being made,
	// and for answers.
	c.options.DialFn = func(addr string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
		return conns.Dial(c.life, d, t, network, addr)
	}
	return c
}

// get returns the library's client. Making one connects; an error says that nothing
// was sent, and the next call tries again.
func (c *client) get() (valkey.Client, error) {
	began := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.life.Err() != nil:
		return nil, redisnode.NotSent(driver.ErrClosed)
	case c.valkey != nil:
		return c.valkey, nil
	case c.err != nil && c.made.After(began): // the attempt for which it waited has failed
		return nil, c.err
	}
	c.valkey, c.err = valkey.NewClient(c.options)
	c.made = time.Now()
	var reply *valkey.ValkeyError
	switch {
	case errors.As(c.err, &reply):
		c.valkey, c.err = nil, c.translate(c.err)
	case c.err != nil:
		c.valkey, c.err = nil, redisnode.NotSent(c.err)
	}
	return c.valkey, c.err
}

// secrets are the passwords that an error reply may quote.
func (c *client) secrets() []string { return []string{c.options.Password, c.options.Sentinel.Password} }

// leave drops the client v, whose server is a replica now, because the library would keep its
// connections. The next call connects anew.
func (c *client) leave(v valkey.Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own && c.valkey == v && time.Since(c.made) > 100*time.Millisecond {
		c.valkey = nil
		go v.Close() // it waits for calls under way
	}
}

// Exec runs one call by itself and several as a pipeline.
func (c *client) Exec(ctx context.Context, calls []*redisnode.Call) {
	v, err := c.get()
	if err != nil {
		for _, call := range calls {
			call.Err = err
		}
		return
	}
	if !c.own {
		ctx = context.WithoutCancel(ctx) // nor its deadline: see New
	}
	if len(calls) == 1 && calls[0].Behind == "" && calls[0].Replicas == 0 {
		c.finish(calls[0], v.Do(ctx, command(v, calls[0])))
	} else {
		c.pipeline(ctx, v, calls)
	}
	if calls[0].Err != nil {
		c.checkReplica(v, calls[0].Err)
	}
}

// checkReplica drops the client if its server says that it is a replica.
func (c *client) checkReplica(v valkey.Client, err error) {
	var reply redisnode.ServerError
	if errors.As(err, &reply) && strings.HasPrefix(string(reply), "READONLY") && !inCluster(v) {
		c.leave(v)
	}
}

func inCluster(v valkey.Client) bool { cluster, _ := kind(v); return cluster }

// pipeline runs calls in one round trip.
func (c *client) pipeline(ctx context.Context, v valkey.Client, calls []*redisnode.Call) {
	cmds := make(valkey.Commands, 0, len(calls))
	sent := make([]int, len(calls)) // commands of each call
	arbitrary := func(commands [][]string) {
		for _, words := range commands {
			cmds = append(cmds, v.B().Arbitrary(words...).Build())
		}
	}
	for i, call := range calls {
		before, after := call.Around()
		arbitrary(before)
		cmds = append(cmds, command(v, call))
		arbitrary(after)
		sent[i] = len(before) + 1 + len(after)
	}
	results := v.DoMulti(ctx, cmds...)
	for i, call := range calls {
		if sent[i] == 1 {
			c.finish(call, results[0])
		} else {
			replies, errs := make([]any, sent[i]), make([]error, sent[i])
			for j, result := range results[:sent[i]] {
				replies[j], errs[j] = c.reply(result)
			}
			call.ReadAll(replies, errs)
		}
		results = results[sent[i]:]
	}
}

func command(v valkey.Client, call *redisnode.Call) valkey.Completed {
	n := int64(len(call.Keys))
	if call.Text != "" {
		return v.B().Eval().Script(call.Text).Numkeys(n).Key(call.Keys...).Arg(call.Args...).Build()
	}
	return v.B().Evalsha().Sha1(call.SHA).Numkeys(n).Key(call.Keys...).Arg(call.Args...).Build()
}

func (c *client) finish(call *redisnode.Call, result valkey.ValkeyResult) {
	if m, err := result.ToMessage(); err == nil && m.IsInt64() {
		call.Number, _ = m.AsInt64()
		return
	}
	call.Read(c.reply(result))
}

func (c *client) reply(result valkey.ValkeyResult) (any, error) {
	reply, err := result.ToAny()
	list, _ := reply.([]any)
	for i := range list {
		if err, ok := list[i].(error); ok { // within a transaction
			list[i] = c.translate(err)
		}
	}
	return reply, c.translate(err)
}

// translate marks error replies, and errors of calls that were never sent.
func (c *client) translate(err error) error {
	if err == nil {
		return nil
	}
	var reply *valkey.ValkeyError
	if errors.As(err, &reply) {
		return redisnode.Reply(reply.Error(), c.secrets()...)
	}
	var op *net.OpError
	if c.own && errors.As(err, &op) && op.Op == "dial" {
		return redisnode.NotSent(err)
	}
	return err
}

// Servers returns every primary.
func (c *client) Servers(ctx context.Context) (servers []redisnode.Server, err error) {
	v, err := c.get()
	if err != nil {
		return nil, err
	}
	for addr, one := range v.Nodes() {
		n := &node{client: c, valkey: one, addr: "valkey://" + addr}
		if inCluster(v) {
			if replica, err := n.replica(ctx); err != nil {
				return nil, err
			} else if replica {
				continue
			}
		}
		servers = append(servers, n)
	}
	return servers, nil
}

// Close closes a client that the driver made: its connections first, so that the library does
// not wait for them.
func (c *client) Close() error {
	if !c.own {
		return nil
	}
	c.end()
	c.conns.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.valkey != nil {
		c.valkey.Close()
	}
	return nil
}

// node is one server.
type node struct {
	client *client
	valkey valkey.Client
	addr   string
}

func (n *node) Addr() string { return n.addr }

func (n *node) Do(ctx context.Context, args ...string) (any, error) {
	if !n.client.own {
		ctx = endOnly{ctx}
	}
	reply, err := n.valkey.Do(ctx, n.valkey.B().Arbitrary(args...).Build()).ToAny()
	if valkey.IsValkeyNil(err) {
		return nil, nil
	}
	return reply, n.client.translate(err)
}

// endOnly hides a context's deadline, at which the library would close a shared connection, but
// not its end, at which the library returns.
type endOnly struct{ context.Context }

func (endOnly) Deadline() (time.Time, bool) { return time.Time{}, false }

// replica reports whether the server says that it is a replica. If ROLE is not allowed it
// counts as a primary.
func (n *node) replica(ctx context.Context) (bool, error) {
	reply, err := n.Do(ctx, "ROLE")
	var refusal redisnode.ServerError
	if errors.As(err, &refusal) {
		return false, nil
	}
	list, _ := reply.([]any)
	return len(list) > 0 && list[0] == "slave", err
}
