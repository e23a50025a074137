package pipeline

import (
	"errors"
	"fmt"
	"strings"
)

// A ServerError is an error reply of a server: "NOSCRIPT No matching script."
type ServerError string

func (e ServerError) Error() string { return string(e) }

// Code returns the first word of the reply.
func (e ServerError) Code() string {
	code, _, _ := strings.Cut(string(e), " ")
	return code
}

// IsCode reports whether err is an error reply that begins with code.
func IsCode(err error, code string) bool {
	var reply ServerError
	return errors.As(err, &reply) && reply.Code() == code
}

// isReply reports whether an error came from a server.
func isReply(err error) bool {
	var reply ServerError
	return errors.As(err, &reply)
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

// Contain makes an error of a panic if it is deferred: a panic of a client library must not end
// the application. The outcome of what it did is unknown.
func Contain(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("panic in the client library: %v", p)
	}
}

// ErrNotSent marks the errors of calls that sent no byte.
var ErrNotSent = errors.New("not sent")

// NotSent marks err with ErrNotSent.
func NotSent(err error) error { return &notSent{err} }

type notSent struct{ err error }

func (e *notSent) Error() string        { return e.err.Error() }
func (e *notSent) Unwrap() error        { return e.err }
func (e *notSent) Is(target error) bool { return target == ErrNotSent }
