package zookeeper

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// mostRead is how many entries of a queue are read; of later ones only the names are known.
const mostRead = 200

// inspectionTTL is that of the session for calls that need no lease.
const inspectionTTL = 10 * time.Second

// inspect calls f with a session, and translates its error.
func (b *Backend) inspect(ctx context.Context, f func(context.Context, *session) error) error {
	return b.calls.Do(ctx, b.opt.CallTimeout, func(call *base.Call) error {
		s := b.session(inspectionTTL)
		defer s.leave()
		return b.failed(call, s, f(call, s))
	})
}

// Lookup returns the holders of key, and the number of its waiters.
func (b *Backend) Lookup(ctx context.Context, key string) (state *driver.State, err error) {
	err = b.inspect(ctx, func(ctx context.Context, s *session) error {
		state, _, err = b.current(ctx, s, key)
		return err
	})
	return state, err
}

// current is state as of now.
func (b *Backend) current(ctx context.Context, s *session, key string) (*driver.State, []string, error) {
	if err := b.look(ctx, s); err != nil {
		return nil, nil, err
	}
	if _, err := s.catchUp(ctx, b.Path(key)); err != nil {
		return nil, nil, err
	}
	return b.state(ctx, s, key)
}

// state reads the queue of a lock, and the nodes of its entries: an entry holds the lock if no earlier
// entry excludes it.
func (b *Backend) state(ctx context.Context, s *session, key string) (*driver.State, []string, error) {
	dir := b.Path(key)
	all, err := s.again(ctx, children(dir))
	if errors.Is(err, errNoNode) {
		return &driver.State{Key: key}, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	var token uint64
	if got, err := s.again(ctx, get(dir, 0)); err == nil {
		token, _ = b.counter(got.data) // other data belong to another library
	}
	var queue []base.Entry
	var nodes []string
	for i, e := range parseQueue(all.children) {
		h := driver.Holder{Owner: e.name}
		if i < mostRead {
			got, err := s.again(ctx, get(dir+"/"+e.name, 0))
			switch {
			case errors.Is(err, errNoNode) && i == 0:
				return b.state(ctx, s, key) // the holder has changed
			case errors.Is(err, errNoNode):
				continue
			case err != nil:
				return nil, nil, err
			}
			h = parseEntry(e.name, got)
		}
		queue, nodes = append(queue, base.Entry{Holder: h, Mode: e.mode}), append(nodes, dir+"/"+e.name)
	}
	return base.QueueState(key, token, queue), nodes, nil
}

// List yields the held keys.
func (b *Backend) List(ctx context.Context, prefix string, yield func(*driver.State) bool) error {
	var all answer
	err := b.inspect(ctx, func(ctx context.Context, s *session) error {
		err := b.look(ctx, s)
		if err == nil {
			all, err = s.again(ctx, children(strings.TrimSuffix(b.opt.Path, "/")))
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, name := range all.children {
		key, ours := strings.CutPrefix(unescape(name), b.opt.Prefix)
		if name == marker || !ours || !strings.HasPrefix(key, prefix) {
			continue
		}
		var state *driver.State
		err := b.inspect(ctx, func(ctx context.Context, s *session) (err error) {
			state, _, err = b.state(ctx, s, key)
			return err
		})
		if err != nil {
			return err
		}
		if len(state.Holders) > 0 && !yield(state) {
			return nil
		}
	}
	return nil
}

// Break deletes the entry of the holder with this token. Its owner learns of it at the next
// renewal.
func (b *Backend) Break(ctx context.Context, key string, h driver.Holder) error {
	return b.inspect(ctx, func(ctx context.Context, s *session) error {
		state, nodes, err := b.current(ctx, s, key)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(state.Holders, func(x driver.Holder) bool { return x.Fence == h.Fence })
		if i < 0 || h.Fence == 0 { // zero: its entry was not read
			return driver.ErrLost
		}
		if _, err = s.ask(ctx, remove(nodes[i], -1)); errors.Is(err, errNoNode) {
			err = driver.ErrLost
		}
		return err
	})
}

// Check asks every member that the backend knows for a session, and the ensemble for its list of
// members.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	found := &base.Findings{}
	err := b.inspect(ctx, func(ctx context.Context, s *session) error {
		if err := b.look(ctx, s); err != nil {
			return err
		}
		return b.checkEnsemble(ctx, s, found)
	})
	if err != nil {
		return nil, err
	}
	for _, found.Node = range b.hosts { // let it make a session
		l, err := (&session{b: b, class: inspectionTTL, ctx: ctx}).connect(found.Node, b.opt.CallTimeout)
		if err != nil {
			found.Add("member-unreachable", driver.SeverityWarning, "start the member, and check that it reaches a majority of the others; or remove it from the URL",
				"the member makes no session: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
			continue
		}
		_, _ = l.send(request{op: opClose}) // or the session ends by itself
		l.hangUp()
	}
	return found.Result(nil)
}

func (b *Backend) checkEnsemble(ctx context.Context, s *session, found *base.Findings) error {
	got, err := s.again(ctx, get("/zookeeper/config", 0))
	if definite(err) {
		return nil // the user may not read it
	}
	voters := 0
	for line := range strings.Lines(string(got.data)) {
		if strings.HasPrefix(line, "server.") && !strings.Contains(line, ":observer") {
			voters++
		}
	}
	found.Members(voters, len(b.hosts))
	return err
}
