package redisnode

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// A Call is one script to run. After it was handed over it belongs to its lane.
type Call struct {
	SHA  string // EVALSHA of this…
	Text string // …or, if not empty, EVAL of this
	Keys []string
	Args []string
	// Behind, if not empty, is a key that is written just before the script, in one transaction
	// with it. So a server that takes no writes never sees the text, and does not know it
	// later. (EVAL alone makes a text callable by EVALSHA, even if it was refused.)
	Behind string
	// Replicas, if not zero, is the number of replicas for which the command WAIT waits just
	// after the script, on the same connection, for at most Patience.
	Replicas int
	Patience time.Duration

	Reply  []any // strings, int64s, nil and lists of them…
	Number int64 // …or, if Reply is nil, a number
	Err    error
	Acked  int64 // WAIT's answer: how many replicas have the connection's writes

	of       *operation // which sent it; nil: a handshake
	process  *process
	guard    *guarded  // to which the script was bound; nil: none
	sent     time.Time // when its ARGV were made, or earlier
	received time.Time
	notAfter int64 // of an acquire: the end of its effect, by the process's clock in µs…
	proposed int64 // …and the token that it proposes

	batch      *bound // whose batch may take it; nil: none may, or one has left it alone
	inBatch    bool   // the reply is that of a batch
	unanswered bool   // a batch has left it alone: it goes again, by itself

	ctx      context.Context
	sending  sendContext // of a trip of this call alone
	deadline time.Time   // the caller's, or that of its operation

	// The lane's mutex guards these.
	state callState
	due   time.Time // the end of a call without an answer; when to look at the context of a lone one
	since time.Time // when a call on its caller's goroutine began; zero for others
	ended bool      // its context was over at the last look

	started bool // nobody waits for it: its operation hears of its end
	// wake gets a value at the end of a call that a caller waits for. It may be kept for another
	// call, when this one has ended.
	wake chan struct{}
	left error         // why it ended without its answer
	self [1]*Call      // a trip of this call alone
	done chan struct{} // of an in-doubt call: closed once Reply and Err are set
}

type callState int8

const (
	callQueued callState = iota
	callSent
	callLeft  // its caller has left before it was sent, or before its answer
	callEnded // it was answered, or failed
)

// result returns the error of a call that has ended.
func (c *Call) result() error {
	if c.left != nil {
		return c.left
	}
	return c.Err
}

// answered is a closed channel, the done of a call that nobody waited for.
var answered = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// code returns the first number of the reply.
func (c *Call) code() int64 {
	if c.Reply == nil {
		return c.Number
	}
	if code, ok := number(c.Reply, 0); ok {
		return code
	}
	return garbled
}

// learn takes the server's clock from the reply's i-th element.
func (c *Call) learn(i int) time.Time {
	us, _ := number(c.Reply, i)
	return c.observe(us)
}

// observe notes the server's clock in microseconds; zero: no clock.
func (c *Call) observe(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	c.process.clock.observe(us, c.sent, c.received)
	return time.UnixMicro(us)
}

// granted reports whether an acquire was granted: 1, or a time, or a number that says with the proposed
// token.
func (c *Call) granted() bool { code := c.code(); return code == 1 || code > 1 && c.Reply == nil }

// unknown is a counter before a grant that is not known; zero: there was none.
const unknown = -1

// voted reads the grant of an acquire: see lua/acquire.lua and lua/batch.lua. fence is 0 if the
// reply is garbled.
func (c *Call) voted() (fence, clock, before int64) {
	if c.Reply == nil {
		switch {
		case c.proposed == 0:
			return c.Number, c.Number, unknown
		case c.inBatch:
			return c.proposed, c.Number, unknown
		case c.Number>>22 > 0:
			before = c.proposed - c.Number>>22
		}
		return c.proposed, c.proposed + c.Number&(1<<22-1) - 1<<19, before
	}
	fence, _ = number(c.Reply, 1)
	clock, _ = number(c.Reply, 2)
	digits, ok := text(c.Reply, 3)
	if ok && digits == "" {
		return fence, clock, 0
	}
	if n, err := strconv.ParseInt(digits, 10, 64); err == nil && n > 0 {
		return fence, clock, n
	}
	return fence, clock, unknown
}

// Around returns the commands that go before and after the script, in the same round trip. A
// transaction with Behind leaves no lasting write.
func (c *Call) Around() (before, after [][]string) {
	switch {
	case c.Behind != "":
		return [][]string{{"MULTI"}, {"SET", c.Behind, "", "PX", "1"}}, [][]string{{"EXEC"}}
	case c.Replicas > 0:
		return nil, [][]string{{"WAIT", strconv.Itoa(c.Replicas), strconv.FormatInt(c.Patience.Milliseconds(), 10)}}
	}
	return nil, nil
}

// Read reads the reply to a script without other commands: an int64 or a list. An error is the one of
// the client library, with error replies as a ServerError.
func (c *Call) Read(reply any, err error) {
	c.Err = err
	switch reply := reply.(type) {
	case int64:
		c.Number = reply
	case []any:
		c.Reply = reply
	case error: // within a transaction
		c.Err = reply
	default:
		if err == nil {
			c.Err = errGarbled
		}
	}
}

// ReadAll reads the replies to a script and to the commands around it, each with its error.
func (c *Call) ReadAll(replies []any, errs []error) {
	if c.Replicas > 0 {
		if c.Read(replies[0], errs[0]); c.Err == nil {
			c.Acked, _ = number(replies, 1)
			c.Err = errs[1]
		}
		return
	}
	for _, err := range errs { // the first has the reason: that of EXEC says only that there was one
		if err != nil {
			c.Err = err
			return
		}
	}
	list, _ := replies[len(replies)-1].([]any)
	if len(list) == 0 {
		c.Err = errGarbled
		return
	}
	c.Read(list[len(list)-1], nil)
}

// A ServerError is an error reply of a server: "NOSCRIPT No matching script."
type ServerError string

func (e ServerError) Error() string { return string(e) }

// Code returns the first word of the reply.
func (e ServerError) Code() string {
	code, _, _ := strings.Cut(string(e), " ")
	return code
}

// isReply reports whether an error came from a server.
func isReply(err error) bool {
	var reply ServerError
	return errors.As(err, &reply)
}

// isCode reports whether err is an error reply that begins with code.
func isCode(err error, code string) bool {
	var reply ServerError
	return errors.As(err, &reply) && reply.Code() == code
}

// Reply returns an error reply without the secrets that it may quote: a server or a proxy that
// does not know HELLO or AUTH quotes their arguments. The list of arguments, which may have
// passwords that are unknown here, is left out.
func Reply(text string, secrets ...string) ServerError {
	code, rest, found := strings.Cut(text, " ")
	if !found {
		return ServerError(code)
	}
	rest, _, _ = strings.Cut(rest, ", with args beginning with")
	for _, secret := range secrets {
		if secret != "" {
			rest = strings.ReplaceAll(rest, secret, "…")
		}
	}
	return ServerError(code + " " + rest)
}

// ErrNotSent marks the errors of calls that sent no byte.
var ErrNotSent = errors.New("not sent")

// NotSent marks err with ErrNotSent.
func NotSent(err error) error { return &notSent{err} }

type notSent struct{ err error }

func (e *notSent) Error() string        { return e.err.Error() }
func (e *notSent) Unwrap() error        { return e.err }
func (e *notSent) Is(target error) bool { return target == ErrNotSent }

// text and number read one element of a reply.
func text(reply []any, i int) (string, bool) {
	if i >= len(reply) {
		return "", false
	}
	s, ok := reply[i].(string)
	return s, ok
}

func number(reply []any, i int) (int64, bool) {
	if i >= len(reply) {
		return 0, false
	}
	n, ok := reply[i].(int64)
	return n, ok
}

// garbled is the code of a reply that no script gives, and errGarbled its error. It is not a
// verdict.
const garbled = math.MinInt64

var errGarbled = errors.New("the server answers in an unknown way")

// configValue returns the value of a setting in the reply to CONFIG GET: a list, or a library's map.
func configValue(reply any, name string) (value string, ok bool) {
	switch reply := reply.(type) {
	case []any:
		if len(reply) == 2 {
			value, ok = reply[1].(string)
		}
	case map[any]any:
		value, ok = reply[name].(string)
	case map[string]any:
		value, ok = reply[name].(string)
	}
	return value, ok
}
