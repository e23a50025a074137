package goredis

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/drivers/internal/redisnode"
)

// client adapts go-redis to redisnode's interface.
type client struct {
	redis redis.UniversalClient // a *redis.Client or *redis.ClusterClient
	once  bool                  // it never retries: after a dial error nothing was sent
	own   bool                  // Close closes it

	reloading atomic.Bool  // a reload is under way
	reloaded  atomic.Int64 // when the last reload ended, as a Unix time in ns

	secrets []string // the passwords that an error reply may quote
}

var _ redisnode.Client = (*client)(nil)

// Exec runs one call by itself and several as a pipeline.
func (c *client) Exec(ctx context.Context, calls []*redisnode.Call) {
	if len(calls) == 1 && calls[0].Behind == "" && calls[0].Replicas == 0 {
		cmd := c.command(ctx, calls[0])
		_ = c.redis.Process(ctx, cmd) // cmd has the error
		calls[0].Read(c.result(cmd))
		c.reload(calls[0].Err)
		return
	}
	pipe := c.redis.Pipeline()
	sent := make([]int, len(calls)) // commands of each call
	for i, call := range calls {
		before, after := call.Around()
		do(ctx, pipe, before)
		_ = pipe.Process(ctx, c.command(ctx, call)) // the pipeline keeps it until Exec
		do(ctx, pipe, after)
		sent[i] = len(before) + 1 + len(after)
	}
	cmds, err := pipe.Exec(ctx) // each command has its own error,
	for _, cmd := range cmds {
		if cmd := cmd.(*redis.Cmd); cmd.Err() == nil && cmd.Val() == nil {
			cmd.SetErr(err) // unless there was no connection
		}
	}
	for i, call := range calls {
		replies, errs := make([]any, sent[i]), make([]error, sent[i])
		for j, cmd := range cmds[:sent[i]] {
			replies[j], errs[j] = c.result(cmd.(*redis.Cmd))
		}
		if cmds = cmds[sent[i]:]; sent[i] == 1 {
			call.Read(replies[0], errs[0])
		} else {
			call.ReadAll(replies, errs)
		}
		c.reload(call.Err)
	}
}

func do(ctx context.Context, pipe redis.Pipeliner, commands [][]string) {
	for _, words := range commands {
		args := make([]any, len(words))
		for i, w := range words {
			args[i] = w
		}
		pipe.Do(ctx, args...)
	}
}

// command makes the command of a call. Storing a string in an interface costs an allocation,
// and a pointer none; but hooks of an application's client could not read a pointer, and a Cluster's
// client reads the key.
func (c *client) command(ctx context.Context, call *redisnode.Call) *redis.Cmd {
	args := make([]any, 0, 3+len(call.Keys)+len(call.Args))
	_, single := c.redis.(*redis.Client)
	add := func(s *string) {
		if c.own && (single || s != &call.Keys[0]) {
			args = append(args, s)
		} else {
			args = append(args, *s)
		}
	}
	if call.Text != "" {
		args = append(args, "eval")
		add(&call.Text)
	} else {
		args = append(args, "evalsha")
		add(&call.SHA)
	}
	args = append(args, len(call.Keys))
	for i := range call.Keys {
		add(&call.Keys[i])
	}
	for i := range call.Args {
		add(&call.Args[i])
	}
	cmd := redis.NewCmd(ctx, args...)
	cmd.SetFirstKeyPos(3)
	return cmd
}

// result returns a command's reply and error; in a transaction the reply may have an error.
func (c *client) result(cmd *redis.Cmd) (any, error) {
	reply, err := cmd.Result()
	list, _ := reply.([]any)
	for i := range list {
		if err, ok := list[i].(error); ok {
			list[i] = c.translate(err)
		}
	}
	return reply, c.translate(err)
}

// reload makes the library reload the slots of a Cluster in the background: after a node's error
// it would use the old slots for up to a minute.
//
// The library asks one node after the other, in random order, and would wait for its read
// timeout if the first is the one that hangs. So each attempt has a short limit, twice that of
// the one before, in case the nodes are slow.
func (c *client) reload(err error) {
	cluster, ok := c.redis.(*redis.ClusterClient)
	if !ok || err == nil || time.Since(time.Unix(0, c.reloaded.Load())) < reloadPause {
		return
	}
	var reply redisnode.ServerError
	if errors.As(err, &reply) && !strings.HasPrefix(string(reply), "READONLY") && !strings.HasPrefix(string(reply), "CLUSTERDOWN") &&
		!strings.HasPrefix(string(reply), "MASTERDOWN") && !strings.HasPrefix(string(reply), "MOVED") {
		return
	}
	if c.reloading.Swap(true) {
		return
	}
	go func() {
		defer c.reloading.Store(false)
		for limit, over := leastReload, false; !over; limit *= 2 {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			_ = cluster.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil }) // it begins with a reload
			over = ctx.Err() == nil || limit > time.Second/2
			cancel()
		}
		c.reloaded.Store(time.Now().UnixNano())
	}()
}

const (
	reloadPause = 50 * time.Millisecond // from the end of a reload until the next one
	leastReload = 50 * time.Millisecond // the limit of the first attempt
)

// translate marks error replies, and errors of calls that were never sent.
func (c *client) translate(err error) error {
	if err == nil {
		return nil
	}
	var reply redis.Error
	if errors.As(err, &reply) {
		return redisnode.Reply(reply.Error(), c.secrets...)
	}
	var op *net.OpError
	if c.once && errors.As(err, &op) && op.Op == "dial" {
		return redisnode.NotSent(err)
	}
	return err
}

// Servers returns every primary.
func (c *client) Servers(ctx context.Context) (servers []redisnode.Server, err error) {
	switch r := c.redis.(type) {
	case *redis.ClusterClient:
		var one sync.Mutex
		err = r.ForEachMaster(ctx, func(_ context.Context, shard *redis.Client) error {
			one.Lock()
			defer one.Unlock()
			servers = append(servers, &node{client: c, redis: shard, addr: address(shard.Options())})
			return nil
		})
	case *redis.Client:
		servers = append(servers, &node{client: c, redis: r, addr: address(r.Options())})
	}
	return servers, c.translate(err)
}

// Close closes a client that the driver made. It ignores the error of a connection that
// go-redis itself closes at this moment, after a failover.
func (c *client) Close() error {
	if !c.own {
		return nil
	}
	if err := c.redis.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// node is one server.
type node struct {
	client *client
	redis  interface {
		Do(ctx context.Context, args ...any) *redis.Cmd
	}
	addr string
}

func (n *node) Addr() string { return n.addr }

func (n *node) Do(ctx context.Context, args ...string) (any, error) {
	list := make([]any, len(args))
	for i, a := range args {
		list[i] = a
	}
	reply, err := n.redis.Do(ctx, list...).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return reply, n.client.translate(err)
}

// Subscribe opens a subscription. After a break go-redis would reopen it without reporting
// that; so it is closed, and redisnode opens another.
func (c *client) Subscribe(ctx context.Context, sink redisnode.Sink, key, channel string) (redisnode.Subscription, error) {
	s := &subscription{client: c, channel: channel, sink: sink}
	if cluster, ok := c.redis.(*redis.ClusterClient); ok {
		primary, err := cluster.MasterForKey(ctx, key)
		if err != nil {
			c.reload(err)
			return nil, c.translate(err)
		}
		s.pubsub = primary.Subscribe(ctx)
	} else {
		s.pubsub = c.redis.Subscribe(ctx)
	}
	if err := s.Again(ctx); err != nil {
		s.Close()
		c.reload(err)
		return nil, c.translate(err)
	}
	go s.receive()
	return s, nil
}

type subscription struct {
	client  *client
	channel string
	pubsub  *redis.PubSub
	sink    redisnode.Sink
}

// Again subscribes to the channel.
func (s *subscription) Again(ctx context.Context) error { return s.pubsub.Subscribe(ctx, s.channel) }

func (s *subscription) Close() { _ = s.pubsub.Close() }

func (s *subscription) next() (message any, err error) {
	defer base.Contain(&err)
	return s.pubsub.Receive(context.Background())
}

// receive reports messages until the connection breaks.
func (s *subscription) receive() {
	for {
		message, err := s.next()
		if err != nil {
			s.Close()
			s.sink.Broken(s.client.translate(err))
			return
		}
		switch m := message.(type) {
		case *redis.Subscription:
			if m.Kind == "subscribe" {
				s.sink.Subscribed()
			}
		case *redis.Message:
			s.sink.Message(m.Payload)
		}
	}
}
