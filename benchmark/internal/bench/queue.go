package bench

import (
	"context"
	"errors"
	"sync"
	"time"
)

// A queue is the fastest way to hand something over through a server: BLPOP waits for the only
// token of a list. It is not a lock, because the token is lost if its holder dies.
type queue struct {
	commands
	seeded sync.Map // keys that have their token
}

// queues returns the contestants that hand over with BLPOP.
func queues() (out []Contestant) {
	for _, lib := range libraries {
		out = append(out, Contestant{
			Name: "queue (BLPOP), " + lib.name, Kind: Limit, Client: lib.name, Serves: OneKeyStore, Waits: true, OnlyWaits: true,
			How: "one token in a list, taken by BLPOP and put back by RPUSH, over " + lib.name + ": no lock, since a holder that dies takes the token with it",
			Open: func(_ context.Context, s *Setup) (Locker, error) {
				c, err := lib.open(s.Nodes[0].Addr, time.Second)
				return &queue{commands: c}, err
			},
		})
	}
	return out
}

// Lock waits for the token. If ctx ends, the token may be lost. Nothing needs it then, because
// every measurement has its own key.
func (q *queue) Lock(ctx context.Context, key string, wait bool) (Held, error) {
	if !wait {
		return nil, errors.New("a queue can only wait")
	}
	t := token{q, key + ":queue"} // beside the locks of the others
	if _, done := q.seeded.LoadOrStore(t.key, true); !done {
		first, err := q.do(ctx, []string{"SET", t.key + ":seed", "1", "NX", "EX", "3600"})
		if err == nil && first != nil {
			err = t.Unlock()
		}
		if err != nil {
			return nil, err
		}
	}
	for ctx.Err() == nil {
		popped, err := q.do(ctx, []string{"BLPOP", t.key, "1"})
		if popped != nil {
			return t, nil
		}
		if end, _ := ctx.Deadline(); err != nil && !time.Now().Before(end) {
			<-ctx.Done() // the connection's deadline may pass shortly before ctx ends
		}
		if err != nil && ctx.Err() == nil {
			return nil, err
		}
	}
	return nil, ctx.Err()
}

func (q *queue) Close() error { return q.close() }

type token struct {
	q   *queue
	key string
}

func (t token) Unlock() error {
	_, err := t.q.do(context.Background(), []string{"RPUSH", t.key, "t"})
	return err
}
