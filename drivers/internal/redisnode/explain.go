package redisnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"

	"github.com/redlock-go/redlock/driver"
)

// soon is when to ask a server again that refuses for now.
const soon = time.Second

// explain makes an error readable: it says what is wrong with which server, and what to do.
// Verdicts and errors of misuse pass unchanged.
func (n *Node) explain(key string, err error) error {
	if err == nil {
		return nil
	}
	var refused *driver.RefusedError
	if errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrLost) || errors.As(err, &refused) ||
		errors.Is(err, driver.ErrInvalid) || errors.Is(err, driver.ErrClosed) {
		return err
	}
	var reply ServerError
	if errors.As(err, &reply) {
		return n.refusal(key, reply)
	}
	if n.closed.Load() {
		return driver.ErrClosed
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", n.cfg.Addr, err)
	}
	err = n.withoutAddress(err)
	var slow net.Error
	if errors.As(err, &slow) && slow.Timeout() && !errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err) // the socket's deadline is the context's
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s did not answer in time: %w", n.cfg.Addr, err)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return fmt.Errorf("%s closed the connection (see the server's log): %w", n.cfg.Addr, err)
	}
	return fmt.Errorf("%s cannot be reached: %w", n.cfg.Addr, err)
}

// refusal explains an error reply. A reply that no Redis gives, for example a proxy's, is not a
// verdict.
func (n *Node) refusal(key string, e ServerError) error {
	if r := n.verdict(key, e); r != nil {
		return r
	}
	return fmt.Errorf("%s: unexpected answer, so the outcome is unknown: %w", n.cfg.Addr, e)
}

// verdicts are the meanings of error replies by their code, and after which time to ask again; zero: an
// operator must act.
var verdicts = map[string]struct {
	after time.Duration
	says  string
}{
	"WRONGPASS":   {0, "the server does not accept this user and password"},
	"NOAUTH":      {0, "the server asks for a password"},
	"READONLY":    {soon, "this server is a read-only replica: connect to its primary"}, // a failover may be under way
	"OOM":         {soon, "the server is out of memory (maxmemory)"},
	"LOADING":     {soon, "the server is loading its data"},
	"MASTERDOWN":  {soon, "this server is a replica that has lost its primary"},
	"BUSY":        {soon, "the server is busy with a slow script"},
	"MISCONF":     {soon, "the server refuses writes because it cannot save its data"},
	"NOREPLICAS":  {soon, "the server refuses writes because too few replicas follow it"},
	"CLUSTERDOWN": {soon, "the Cluster is down"},
	"TRYAGAIN":    {soon, "the Cluster is moving this slot"},
	"CROSSSLOT":   {0, "the Cluster sees the lock and its counter in different slots"},
	"NOPROTO":     {0, "the server is too old: Redis 6.2 or Valkey 7.2 is needed"},
}

// verdict returns the meaning of an error reply, or nil if it is unknown.
func (n *Node) verdict(key string, e ServerError) *driver.RefusedError {
	no := func(after time.Duration, format string, args ...any) *driver.RefusedError {
		return &driver.RefusedError{RetryAfter: after, Reason: n.cfg.Addr + ": " + fmt.Sprintf(format, args...), Err: e}
	}
	text := string(e)
	if v, ok := verdicts[e.Code()]; ok {
		return no(v.after, "%s", v.says)
	}
	if e.forbids() {
		return no(0, "%s", n.permission(key, text))
	}
	switch e.Code() {
	case "MOVED", "ASK":
		if n.cfg.Cluster {
			return no(soon, "the Cluster has moved this slot")
		}
		return no(0, "this server is one node of a Cluster: use topology=cluster")
	case "WRONGTYPE":
		return no(0, "the key %q, its counter %q, or its readers %q, holds something that is no lock", n.names.Lock(key), n.names.Counter(key), n.names.Readers(key))
	case "GUARD":
		return n.guard.refusal(text)
	}
	switch {
	case strings.Contains(text, "AUTH") && strings.Contains(text, "without any password"), strings.Contains(text, "invalid password"):
		return no(0, "the server does not accept this user and password")
	case strings.Contains(text, "max number of clients"):
		return no(soon, "the server has too many clients (maxclients)")
	case strings.Contains(text, "DB index is out of range"):
		return no(0, "the server has no such database")
	case strings.Contains(text, "mark of the fencing counters"):
		return no(0, "the key %q holds something that is not the mark of the fencing counters: remove it, or use another prefix", n.names.Mark(key, n.cfg.Cluster))
	case strings.Contains(text, "fencing counter"):
		return no(0, "the counter %q is no number, or at its end", n.names.Counter(key))
	case strings.Contains(text, "unknown command"), strings.Contains(text, "Unknown Redis command"), strings.Contains(text, "scripting engine"):
		if command := strings.ToUpper(quoted(text)); command != "EVAL" && command != "EVALSHA" && command != "LUA" {
			return no(0, "the server lacks the command %s: Redis 6.2 or Valkey 7.2 is needed", command)
		}
		return no(0, "the server runs no Lua scripts, and every lock needs them: let it load its module for Lua, allow EVAL and EVALSHA, or use another server")
	}
	return nil
}

// forbids reports whether the user lacks a right.
func (e ServerError) forbids() bool {
	text := string(e)
	return e.Code() == "NOPERM" || strings.Contains(text, "ACL failure") || strings.Contains(text, "No permissions") || strings.Contains(text, "can't run this command")
}

// permission names the missing right.
func (n *Node) permission(key, text string) string {
	low := strings.ToLower(text)
	switch {
	case strings.Contains(low, "channel"):
		return fmt.Sprintf("the user may not use the channel %q (allow &%s%s*)", n.waiterChannels+"…", n.cfg.Prefix, names.Layout)
	case strings.Contains(low, "key"):
		return fmt.Sprintf("the user may not use the keys %q and %q (allow ~%s*)", n.names.Lock(key), n.names.Counter(key), n.cfg.Prefix)
	}
	command := quoted(text)
	if command == "" {
		command = "of a script: time, set, get, pexpire, pttl, del or publish"
	}
	return fmt.Sprintf("the user may not run the command %s (the package's documentation lists the rights: eval, evalsha, time, set, get, del, pexpire and pttl are the least)", command)
}

// quoted returns the text between the first quotes of an error reply.
func quoted(text string) string {
	_, rest, found := strings.Cut(text, "'")
	if !found {
		return ""
	}
	word, _, found := strings.Cut(rest, "'")
	if !found || len(word) > 40 {
		return ""
	}
	return word
}

// unknown reports whether a call that ended with err may have taken effect, or may still do so.
// That includes errors that no Redis gives, which come from a proxy.
func (n *Node) unknown(err error) bool {
	if errors.Is(err, ErrNotSent) || errors.Is(err, driver.ErrRefused) {
		return false
	}
	var reply ServerError
	return !errors.As(err, &reply) || n.verdict("", reply) == nil
}

// final reports whether the server refused a call for good.
func (n *Node) final(err error) bool {
	if no := (*driver.RefusedError)(nil); errors.As(err, &no) {
		return no.RetryAfter == 0
	}
	var reply ServerError
	if !errors.As(err, &reply) {
		return false
	}
	v := n.verdict("", reply)
	return v != nil && v.RetryAfter == 0
}

// withoutAddress returns a connection's error without the address that the node's name has already.
// In a Cluster the address may be another one.
func (n *Node) withoutAddress(err error) error {
	var op *net.OpError
	if !errors.As(err, &op) || op.Addr == nil || !strings.Contains(n.cfg.Addr, op.Addr.String()) {
		return err
	}
	return &abridged{err, strings.Replace(err.Error(), op.Error(), op.Op+": "+op.Err.Error(), 1)}
}

// abridged is an error with another text.
type abridged struct {
	error
	text string
}

func (e *abridged) Error() string { return e.text }
func (e *abridged) Unwrap() error { return e.error }
