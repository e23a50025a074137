package bench

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"
)

// A queue is the fastest way to hand something over through a server: a list with one
// token in it, that BLPOP waits for. It is no lock, since a holder that dies takes the
// token with it.
type queue struct {
	list   tokenList
	seeded sync.Map // keys whose token has been put there
}

// tokenList is what a client library does for a queue.
type tokenList interface {
	// pop waits for a token, and returns false after a second without one. If ctx ends
	// a token may be lost: nobody wants it any more, since every measurement has a key of its own.
	pop(ctx context.Context, key string) (bool, error)
	push(key string) error
	first(ctx context.Context, key string) (bool, error)
	Close() error
}

// queues returns the contestants that hand over by BLPOP.
func queues() []Contestant {
	queueOf := func(name string, open func(addr string) (tokenList, error)) Contestant {
		return Contestant{
			Name: "queue (BLPOP), " + name, Kind: Limit, Client: name, Serves: OneKeyStore, Waits: true, OnlyWaits: true,
			How: "one token in a list, taken by BLPOP and put back by RPUSH, over " + name + ": no lock, since a holder that dies takes the token with it",
			Open: func(_ context.Context, s *Setup) (Locker, error) {
				list, err := open(s.Nodes[0].Addr)
				if err != nil {
					return nil, err
				}
				return &queue{list: list}, nil
			},
		}
	}
	return []Contestant{queueOf("go-redis", openGoRedisList), queueOf("valkey-go", openValkeyGoList)}
}

func (q *queue) Lock(ctx context.Context, key string, wait bool) (Held, error) {
	if !wait {
		return nil, errors.New("a queue can only wait")
	}
	key += ":queue" // beside the locks of the others
	if _, done := q.seeded.Load(key); !done {
		first, err := q.list.first(ctx, key+":seed")
		if err == nil && first {
			err = q.list.push(key)
		}
		if err != nil {
			return nil, err
		}
		q.seeded.Store(key, true)
	}
	for ctx.Err() == nil {
		ok, err := q.list.pop(ctx, key)
		if ok {
			return token{q, key}, nil
		}
		if end, _ := ctx.Deadline(); err != nil && !time.Now().Before(end) {
			<-ctx.Done() // the connection may know its end a little sooner than ctx
		}
		if err != nil && ctx.Err() == nil {
			return nil, err
		}
	}
	return nil, ctx.Err()
}

func (q *queue) Close() error { return q.list.Close() }

type token struct {
	q   *queue
	key string
}

func (t token) Renew(context.Context) error { return nil }
func (t token) Unlock() error               { return t.q.list.push(t.key) }

type goRedisList struct{ *redis.Client }

func openGoRedisList(addr string) (tokenList, error) {
	return goRedisList{redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true, Protocol: 2})}, nil
}

func (l goRedisList) pop(ctx context.Context, key string) (bool, error) {
	err := l.BLPop(ctx, time.Second, key).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, err
}

func (l goRedisList) push(key string) error { return l.RPush(context.Background(), key, "t").Err() }

func (l goRedisList) first(ctx context.Context, key string) (bool, error) {
	return l.SetNX(ctx, key, "1", time.Hour).Result()
}

type valkeyGoList struct{ valkey.Client }

func openValkeyGoList(addr string) (tokenList, error) {
	c, err := openValkeyGo(addr, time.Second)
	if err != nil {
		return nil, err
	}
	return valkeyGoList{c.(valkeyGo).client}, nil
}

func (l valkeyGoList) pop(ctx context.Context, key string) (bool, error) {
	err := l.Do(ctx, l.B().Blpop().Key(key).Timeout(1).Build()).Error()
	if valkey.IsValkeyNil(err) {
		return false, nil
	}
	return err == nil, err
}

func (l valkeyGoList) push(key string) error {
	return l.Do(context.Background(), l.B().Rpush().Key(key).Element("t").Build()).Error()
}

func (l valkeyGoList) first(ctx context.Context, key string) (bool, error) {
	err := l.Do(ctx, l.B().Set().Key(key).Value("1").Nx().Ex(time.Hour).Build()).Error()
	if valkey.IsValkeyNil(err) {
		return false, nil
	}
	return err == nil, err
}

func (l valkeyGoList) Close() error {
	l.Client.Close()
	return nil
}
