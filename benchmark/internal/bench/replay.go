package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest/fault"
)

// replay sends the commands that our driver sends: it watches one lock of the driver
// through a proxy and repeats its commands with other keys, owners and tokens, and with
// times that are as fresh as they were. So "our scripts with nothing around them" is
// what the driver really sends, whatever that is in this version.
type replay struct {
	acquired, renewed, released pattern
	token                       int // which element of the grant is the token, or tokenAlone
}

// The names by which what varies is found in the recorded commands.
const (
	recordedKey   = "benchmark-recorded-key"
	recordedOwner = "benchmark-recorded-owner"
)

// canReplay reports whether there is a driver to watch.
func canReplay() bool { return registered("redis") }

// newReplay records the commands on the server at addr.
func newReplay(ctx context.Context, addr string, s *Setup) (protocol, error) {
	proxy, err := fault.Start(addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = proxy.Close() }() // it has served
	tape := &recorder{sent: map[int64]*bytes.Buffer{}, replies: map[int64]*bytes.Buffer{}}
	proxy.Judge(fault.ToServer, tape.judge(tape.sent))
	proxy.Judge(fault.ToClient, tape.judge(tape.replies))

	b, err := dlock.OpenBackend("redis://" + proxy.Addr())
	if err != nil {
		return nil, err
	}
	defer func() { _ = b.Close() }()
	r := &replay{token: -1}
	for range 2 { // in the first the driver and the server get to know each other
		if err := r.record(ctx, b, tape, s); err != nil {
			return nil, fmt.Errorf("record the driver's commands: %w", err)
		}
	}
	return r, nil
}

// record watches one lock.
func (r *replay) record(ctx context.Context, b driver.Backend, tape *recorder, s *Setup) error {
	tape.reset()
	l, err := b.Acquire(ctx, &driver.Request{Key: recordedKey, Owner: recordedOwner, TTL: s.TTL})
	if err != nil {
		return err
	}
	fence := l.Grant().Fence
	acquired, replies, err := tape.take()
	if err != nil {
		return err
	}
	r.acquired = newPattern(acquired, fence)
	r.token = tokenIn(replies, fence)
	if _, err := l.Renew(ctx, &driver.Renewal{TTL: s.TTL}); err != nil {
		return err
	}
	renewed, _, err := tape.take()
	if err != nil {
		return err
	}
	r.renewed = newPattern(renewed, fence)
	if err := l.Release(ctx); err != nil {
		return err
	}
	released, _, err := tape.take()
	if err != nil {
		return err
	}
	r.released = newPattern(released, fence)
	if r.token < 0 {
		return errors.New("no reply has the token")
	}
	return nil
}

func (r *replay) acquire(key, owner string) []string      { return r.acquired.fill(key, owner, "") }
func (r *replay) renew(key, owner, token string) []string { return r.renewed.fill(key, owner, token) }
func (r *replay) release(key, owner, token string) []string {
	return r.released.fill(key, owner, token)
}

// granted reads both forms of a grant: the token alone, as where nothing was in its way, and
// {1, …, token, …}, as where the key has no counter yet.
func (r *replay) granted(reply any) (string, bool) {
	if list, ok := reply.([]any); ok {
		at := r.token
		if at == tokenAlone {
			at = 1
		}
		if len(list) <= at || list[0] != int64(1) {
			return "", false
		}
		reply = list[at]
	}
	n, ok := reply.(int64)
	return strconv.FormatInt(n, 10), ok
}

// tokenAlone says that a grant's reply is the token itself.
const tokenAlone = math.MaxInt

// tokenIn returns at which place of which reply the token stands; -1 if at none.
func tokenIn(replies []any, fence uint64) int {
	for _, reply := range slices.Backward(replies) {
		if n, ok := reply.(int64); ok && n == int64(fence) {
			return tokenAlone
		}
		if list, ok := reply.([]any); ok {
			if i := slices.Index(list, any(int64(fence))); i >= 0 {
				return i
			}
		}
	}
	return -1
}

// A pattern is a command with holes.
type pattern struct {
	args []hole
	at   time.Time // when it was recorded
}

type hole struct {
	text   string
	varies bool
	us     int64 // a time in microseconds, if not zero
}

// soon is how near to now a number in microseconds is taken for a time.
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

// The marks are bytes that occur in no key, owner or token of ours.
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
	b := make([]byte, 0, len(text)+len(key)+len(owner)+len(token))
	for i := range len(text) {
		switch text[i] {
		case markKey[0]:
			b = append(b, key...)
		case markOwner[0]:
			b = append(b, owner...)
		case markToken[0]:
			b = append(b, token...)
		default:
			b = append(b, text[i])
		}
	}
	return string(b)
}

// A recorder keeps what passes a proxy, by connection.
type recorder struct {
	mu            sync.Mutex
	sent, replies map[int64]*bytes.Buffer
}

func (r *recorder) judge(to map[int64]*bytes.Buffer) fault.Judge {
	return func(conn int64, chunk []byte) (int, fault.Action) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if to[conn] == nil {
			to[conn] = &bytes.Buffer{}
		}
		to[conn].Write(chunk)
		return len(chunk), fault.Pass
	}
}

// reset forgets what was recorded.
func (r *recorder) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.sent)
	clear(r.replies)
}

// take returns the last EVALSHA that was sent, and all replies, and forgets them.
func (r *recorder) take() (command []string, replies []any, err error) {
	defer r.reset()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range r.sent {
		for _, v := range readAll(b.Bytes()) {
			if args := texts(v); len(args) > 0 && strings.EqualFold(args[0], "EVALSHA") {
				command = args
			}
		}
	}
	for _, b := range r.replies {
		replies = append(replies, readAll(b.Bytes())...)
	}
	if command == nil {
		return nil, nil, errors.New("the driver sent no EVALSHA")
	}
	return command, replies, nil
}

// replyError is an error reply.
type replyError string

func (e replyError) Error() string { return string(e) }

// readReply reads one value of RESP2: a string, an int64, nil, a []any of them or a replyError.
func readReply(r *bufio.Reader) (any, error) {
	line, err := r.ReadSlice('\n')
	if err != nil || len(line) < 3 {
		return nil, errors.Join(err, errors.New("no reply"))
	}
	kind, rest := line[0], string(line[1:len(line)-2])
	n, err := strconv.ParseInt(rest, 10, 64)
	switch {
	case kind == '+':
		return rest, nil
	case kind == '-':
		return replyError(rest), nil
	case err != nil || kind == ':':
		return n, err
	case n < 0:
		return nil, nil
	case kind == '$':
		b := make([]byte, n+2)
		_, err := io.ReadFull(r, b)
		return string(b[:n]), err
	}
	list := make([]any, n)
	for i := range list {
		if list[i], err = readReply(r); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// readAll reads as many values as there are.
func readAll(b []byte) (values []any) {
	in := bufio.NewReader(bytes.NewReader(b))
	for {
		v, err := readReply(in)
		if err != nil {
			return values
		}
		values = append(values, v)
	}
}

// texts returns a command as strings.
func texts(v any) []string {
	list, _ := v.([]any)
	var out []string
	for _, e := range list {
		s, ok := e.(string)
		if !ok {
			return nil
		}
		out = append(out, s)
	}
	return out
}
