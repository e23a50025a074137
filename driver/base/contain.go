package base

import "fmt"

// Contain makes an error of a panic if it is deferred: a panic of a client library, at an answer that
// no server gives, must not end the application. The outcome of what it did is unknown.
func Contain(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("panic in the client library: %.300v", p)
	}
}
