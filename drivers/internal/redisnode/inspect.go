package redisnode

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
)

// Lookup returns the holder of key. The holder of another library's lock is its whole value.
func (n *Node) Lookup(ctx context.Context, key string) (*driver.State, error) {
	switch {
	case n.closed.Load():
		return nil, driver.ErrClosed
	case key == "" || len(n.cfg.Prefix)+len(key) > driver.MaxKey:
		return nil, driver.Invalid("key", "must have 1 to %d bytes", driver.MaxKey-len(n.cfg.Prefix))
	}
	s, err := n.lookup(ctx, key)
	return s, n.explain(key, err)
}

func (n *Node) lookup(ctx context.Context, key string) (*driver.State, error) {
	c, err := heed(ctx, &n.wg, func() (*Call, error) {
		return n.ask(async.Within(ctx, n.cfg.CallTimeout), lua.Lookup, n.inspected(nil, key), "0")
	})
	if err != nil {
		return nil, err
	}
	now := c.learn(0)
	if now.IsZero() || len(c.Reply) != 7 {
		return nil, errGarbled
	}
	s := stateOf(key, now, c.Reply[1:1+told])
	s.Queue = queue(c.Reply[1+told])
	return s, nil
}

// inspected appends the keys of one lock that lookup and list want.
func (n *Node) inspected(keys []string, key string) []string {
	return append(keys, n.names.Lock(key), n.names.Counter(key), n.names.WaitQueue(key), n.names.Readers(key))
}

// told is how much lookup and list reply about a lock.
const told = 5

// stateOf makes a state of it.
func stateOf(key string, now time.Time, reply []any) *driver.State {
	counter, _ := number(reply, 0)
	value, _ := text(reply, 1)
	pttl, _ := number(reply, 2)
	waiters, _ := number(reply, 3)
	s := &driver.State{Key: key, Fence: uint64(max(counter, 0)), Waiters: int(waiters)}
	left := time.Duration(max(pttl, 0)) * time.Millisecond
	switch {
	case pttl == -2:
		return s
	case strings.HasPrefix(value, names.Next):
		s.ReservedFor = max(left, time.Millisecond)
		return s
	case value == names.Shared:
		s.Mode = driver.Shared
		scored(reply[4], func(member string, us int64) {
			if end := time.UnixMicro(us).Sub(now); end > 0 && !strings.HasPrefix(member, names.Next) {
				s.Holders = append(s.Holders, holder(member, end))
			}
		})
		if len(s.Holders) > 0 {
			return s
		}
	}
	s.Holders = []driver.Holder{holder(value, left)}
	return s
}

func holder(value string, left time.Duration) driver.Holder {
	h := driver.Holder{TTL: left}
	h.Owner, h.Tokens, h.Fence = names.Parse(value)
	if h.Fence > 0 {
		h.Since = time.UnixMicro(int64(h.Fence))
	}
	return h
}

// scored calls fn for the members of a sorted set, with their scores.
func scored(reply any, fn func(member string, score int64)) {
	pairs, _ := reply.([]any)
	for i := 0; i+1 < len(pairs); i += 2 {
		member, _ := pairs[i].(string)
		digits, _ := pairs[i+1].(string)
		if score, err := strconv.ParseFloat(digits, 64); err == nil {
			fn(member, int64(min(score, driver.MaxFence)))
		}
	}
}

// queue reads the waiters, without those that only listen, which have no place.
func queue(reply any) (all []driver.Holder) {
	scored(reply, func(place string, us int64) {
		if us > 0 && us < driver.MaxFence {
			name, _, _ := strings.Cut(place, ".")
			all = append(all, driver.Holder{Owner: name, Since: time.UnixMicro(us)})
		}
	})
	return all
}

// How many keys List requests, and how many of the server's keys it lets scan, in one step: a
// server needs a millisecond or two for this.
const (
	lookupsAtOnce = 128
	scannedAtOnce = "2000"
)

// List yields the currently held locks of this package under prefix. It finds them by their
// fencing counters, for which the server scans its keys. A lock of another library has no
// counter, and only Lookup shows it.
func (n *Node) List(ctx context.Context, prefix string, yield func(*driver.State) bool) error {
	if n.closed.Load() {
		return driver.ErrClosed
	}
	errStop := errors.New("stop")
	err := each(ctx, n.cfg.Client, &n.wg, func(s Server) error {
		return n.scan(ctx, s, prefix, func(keys []string) error {
			states, err := n.lookups(ctx, s, keys)
			for _, s := range states {
				if len(s.Holders) > 0 && s.Holders[0].Fence > 0 && !yield(s) {
					return errStop
				}
			}
			return err
		})
	})
	if errors.Is(err, errStop) {
		return nil
	}
	return n.explain(prefix, err)
}

// lookups looks up keys at once with one script, or in a Cluster one after the other, because they may
// be in several slots. The state of a key that is not a string has no holders.
func (n *Node) lookups(ctx context.Context, s Server, keys []string) ([]*driver.State, error) {
	states := make([]*driver.State, len(keys))
	if n.cfg.Cluster {
		for i, key := range keys {
			var err error
			if states[i], err = n.lookup(ctx, key); isCode(err, "WRONGTYPE") {
				states[i] = &driver.State{Key: key}
			} else if err != nil {
				return nil, err
			}
		}
		return states, nil
	}
	args := []string{"EVAL", lua.List, strconv.Itoa(4 * len(keys))}
	for _, key := range keys {
		args = n.inspected(args, key)
	}
	reply, err := s.Do(ctx, args...)
	if err != nil {
		return nil, err
	}
	all, _ := reply.([]any)
	if len(all) != 1+told*len(keys) {
		return nil, errGarbled
	}
	now, _ := number(all, 0)
	for i, key := range keys {
		states[i] = stateOf(key, time.UnixMicro(now), all[1+told*i:])
	}
	return states, nil
}

// scan yields the keys of s under prefix that have a counter, each once, several at a time.
func (n *Node) scan(ctx context.Context, s Server, prefix string, yield func(keys []string) error) error {
	cursor, seen := "0", map[string]bool{}
	var found []string
	for {
		reply, err := s.Do(ctx, "SCAN", cursor, "MATCH", glob(n.names.Counters())+"*", "COUNT", scannedAtOnce)
		if err != nil {
			return err
		}
		page, ok := reply.([]any)
		if !ok || len(page) != 2 {
			return errGarbled
		}
		cursor, _ = page[0].(string)
		last := cursor == "0" || cursor == ""
		keys, _ := page[1].([]any)
		for _, k := range keys {
			name, _ := k.(string)
			key, ours := n.names.Counted(name)
			if !ours || !strings.HasPrefix(key, prefix) || seen[key] {
				continue
			}
			seen[key] = true
			found = append(found, key)
		}
		for len(found) >= lookupsAtOnce || last && len(found) > 0 {
			some := min(len(found), lookupsAtOnce)
			if err := yield(found[:some]); err != nil {
				return err
			}
			found = found[some:]
		}
		if last {
			return nil
		}
	}
}

// glob escapes the characters with a meaning in SCAN's MATCH.
func glob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

// Break takes the lock from the holder with the token of h, and tells the next waiter.
func (n *Node) Break(ctx context.Context, key string, h driver.Holder) error {
	if n.closed.Load() {
		return driver.ErrClosed
	}
	s, err := n.lookup(ctx, key)
	if err != nil {
		return n.explain(key, err)
	}
	i := slices.IndexFunc(s.Holders, func(has driver.Holder) bool { return h.Fence > 0 && has.Fence == h.Fence })
	if i < 0 {
		return driver.ErrLost
	}
	value := base.Ranged(s.Holders[i].Owner, s.Holders[i].Tokens) + "|" + strconv.FormatUint(h.Fence, 10)
	found, err := n.releasing(n.names.Texts(key, "", 0), value, "", s.Mode == driver.Shared).do(ctx)
	if err == nil && !found {
		return driver.ErrLost
	}
	return n.explain(key, err)
}

// EachServer calls fn for every server that holds locks, one after the other, with its address
// and a function that runs one command on the backend's own connections. It is for measurements
// and maintenance: a command that changes a lock breaks this package's promises. Replies are
// strings, int64s, nil, and []any and maps of them. It returns the first error of fn.
func (n *Node) EachServer(ctx context.Context, fn func(ctx context.Context, addr string, do func(ctx context.Context, args ...string) (any, error)) error) error {
	if n.closed.Load() {
		return driver.ErrClosed
	}
	return each(ctx, n.cfg.Client, &n.wg, func(s Server) error { return fn(ctx, s.Addr(), s.Do) })
}
