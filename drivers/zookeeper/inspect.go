package zookeeper

import (
	"context"
	"errors"
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
		if err := b.look(ctx, s); err != nil {
			return err
		}
		if _, err := s.catchUp(ctx, b.Path(key)); err != nil {
			return err
		}
		state, _, err = b.state(ctx, s, key)
		return err
	})
	return state, err
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
		node, err := b.holder(ctx, s, key, h.Fence)
		if err != nil {
			return err
		}
		if _, err = s.ask(ctx, remove(node, -1)); errors.Is(err, errNoNode) {
			err = driver.ErrLost
		}
		return err
	})
}

// holder returns the entry of the holder with this token.
func (b *Backend) holder(ctx context.Context, s *session, key string, fence uint64) (string, error) {
	if _, err := s.catchUp(ctx, b.Path(key)); err != nil {
		return "", err
	}
	state, nodes, err := b.state(ctx, s, key)
	if err != nil {
		return "", err
	}
	for i, h := range state.Holders {
		if h.Fence == fence && fence != 0 { // zero: its entry was not read
			return nodes[i], nil
		}
	}
	return "", driver.ErrLost
}

// Check asks every member that the backend knows for a session, and the ensemble for its list of
// members.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	found := &base.Findings{}
	err := b.inspect(ctx, func(ctx context.Context, s *session) error {
		if _, err := s.await(ctx); err != nil {
			return err
		}
		if err := b.look(ctx, s); err != nil {
			return err
		}
		return b.checkEnsemble(ctx, s, found)
	})
	if err != nil {
		return nil, err
	}
	for _, host := range b.hosts {
		found.Node = host
		b.checkMember(ctx, host, found)
	}
	return found.Result(nil)
}

func (b *Backend) checkEnsemble(ctx context.Context, s *session, found *base.Findings) error {
	got, err := s.again(ctx, get("/zookeeper/config", 0))
	switch {
	case err != nil && !definite(err):
		return err
	case err != nil:
		return nil // the user may not read it
	}
	voters := 0
	for line := range strings.Lines(string(got.data)) {
		if strings.HasPrefix(line, "server.") && !strings.Contains(line, ":observer") {
			voters++
		}
	}
	found.Members(voters, len(b.hosts))
	return nil
}

// checkMember lets the member make a session.
func (b *Backend) checkMember(ctx context.Context, host string, found *base.Findings) {
	l, err := (&session{b: b, class: inspectionTTL, ctx: ctx}).connect(host, b.opt.CallTimeout)
	if err != nil {
		found.Add("member-unreachable", driver.SeverityWarning, "start the member, and check that it reaches a majority of the others; or remove it from the URL",
			"the member makes no session: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
		return
	}
	_, _ = l.send(request{op: opClose}) // or the session ends by itself
	l.hangUp()
}
