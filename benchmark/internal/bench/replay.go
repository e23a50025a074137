package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
)

// replay sends the same commands as this module's driver. It records the driver's commands for
// one lock, and repeats them with other keys, owners and tokens, and with times moved on to
// now. So "our scripts with nothing around them" are the commands that this version of the
// driver sends.
type replay struct{ acquired, released pattern }

// These names mark the key and the owner in the recorded commands.
const (
	recordedKey   = "benchmark-recorded-key"
	recordedOwner = "benchmark-recorded-owner"
)

// newReplay records the commands on the server at addr.
func newReplay(ctx context.Context, addr string, s *Setup) (protocol, error) {
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true, Protocol: 2})
	defer c.Close() //nolint:errcheck // it has served
	tape := &recorder{}
	c.AddHook(tape)
	b, err := goredis.New(c, nil)
	if err != nil {
		return nil, err
	}
	defer b.Close() //nolint:errcheck // it has served
	r := &replay{}
	for range 2 { // the first lock also loads scripts and checks the server
		if err := r.record(ctx, b, tape, s); err != nil {
			return nil, fmt.Errorf("record the driver's commands: %w", err)
		}
	}
	return r, nil
}

// record records the commands of one lock.
func (r *replay) record(ctx context.Context, b driver.Backend, tape *recorder, s *Setup) error {
	tape.take()
	l, err := b.Acquire(ctx, &driver.Request{Key: recordedKey, Owner: recordedOwner, TTL: s.TTL})
	if err != nil {
		return err
	}
	fence := l.Grant().Fence
	acquired, reply := tape.take()
	if err := l.Release(ctx); err != nil {
		return err
	}
	released, _ := tape.take()
	if acquired == nil || released == nil {
		return errors.New("the driver sent no EVALSHA")
	}
	r.acquired, r.released = newPattern(acquired, fence), newPattern(released, fence)
	if token, ok := r.granted(reply); !ok || token != strconv.FormatUint(fence, 10) {
		return fmt.Errorf("the driver's token is %d, and this is read as %q: %v", fence, token, reply)
	}
	return nil
}

func (r *replay) acquire(key, owner string) []string { return r.acquired.fill(key, owner, "") }
func (r *replay) release(key, owner, token string) []string {
	return r.released.fill(key, owner, token)
}

// granted reads both forms of a grant: usually the token alone; {1, token, …} if the key has no
// counter yet.
func (*replay) granted(reply any) (string, bool) {
	if list, ok := reply.([]any); ok {
		if len(list) < 2 || list[0] != int64(1) {
			return "", false
		}
		reply = list[1]
	}
	n, ok := reply.(int64)
	return strconv.FormatInt(n, 10), ok
}

// A pattern is a command in which some arguments vary.
type pattern struct {
	args []hole
	at   time.Time // the time of the recording
}

type hole struct {
	text   string
	varies bool
	us     int64 // a time in microseconds, if not zero
}

// A number counts as a time, in microseconds, if it differs from now by less than soon.
const soon = time.Hour

func newPattern(args []string, fence uint64) pattern {
	t := pattern{at: time.Now()}
	token := strconv.FormatUint(fence, 10)
	for _, a := range args {
		h := hole{text: a}
		n, err := strconv.ParseInt(a, 10, 64)
		switch {
		case err == nil && time.UnixMicro(n).Sub(t.at).Abs() < soon:
			h.us = n
		case strings.Contains(a, recordedKey) || strings.Contains(a, recordedOwner):
			h.varies = true
			h.text = strings.ReplaceAll(a, token, markToken)
			h.text = strings.ReplaceAll(h.text, recordedKey, markKey)
			h.text = strings.ReplaceAll(h.text, recordedOwner, markOwner)
		}
		t.args = append(t.args, h)
	}
	return t
}

// The marks are bytes that no recorded key, owner or token contains.
const markKey, markOwner, markToken = "\x01", "\x02", "\x03"

// fill returns the command for another lock.
func (t *pattern) fill(key, owner, token string) []string {
	args := make([]string, len(t.args))
	for i := range t.args {
		switch h := &t.args[i]; {
		case h.us != 0:
			args[i] = strconv.FormatInt(h.us+time.Since(t.at).Microseconds(), 10)
		case h.varies:
			args[i] = fillMarks(h.text, key, owner, token)
		default:
			args[i] = h.text
		}
	}
	return args
}

func fillMarks(text, key, owner, token string) string {
	text = strings.ReplaceAll(text, markKey, key)
	text = strings.ReplaceAll(text, markOwner, owner)
	return strings.ReplaceAll(text, markToken, token)
}

// A recorder is a hook of go-redis that keeps the last EVALSHA and its reply.
type recorder struct {
	mu      sync.Mutex
	command []string
	reply   any
}

func (*recorder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *recorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer r.keep(cmd)
		return next(ctx, cmd)
	}
}

func (r *recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, all []redis.Cmder) error {
		defer r.keep(all...)
		return next(ctx, all)
	}
}

func (r *recorder) keep(all ...redis.Cmder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, cmd := range all {
		if c, ok := cmd.(*redis.Cmd); ok && strings.EqualFold(c.Name(), "evalsha") {
			r.command = nil
			for _, arg := range c.Args() {
				r.command = append(r.command, fmt.Sprint(arg))
			}
			r.reply = c.Val()
		}
	}
}

// take returns the recorded command and its reply, and forgets them.
func (r *recorder) take() (command []string, reply any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	command, reply = r.command, r.reply
	r.command, r.reply = nil, nil
	return command, reply
}
