package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
)

// The exit codes of dlock itself. Those up to 78 are from sysexits.h, the others are those of a
// shell.
const (
	exitUsage       = 64
	exitUnavailable = 69
	exitIO          = 74
	exitHeld        = 75
	exitLost        = 76
	exitCannotRun   = 126
	exitNotFound    = 127
	exitSignal      = 128 // plus the signal's number
)

// A console has the streams of one run of the program.
type console struct {
	stdin    io.Reader
	out, err *stream
	lines    *backlog // to err
}

// A stream makes one Write at a time, because dlock and its command write concurrently, and
// remembers the first error, so that what prints need not return it.
type stream struct {
	w   io.Writer
	mu  *sync.Mutex
	err error
}

func (s *stream) Write(p []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err = s.w.Write(p)
	if s.err == nil {
		s.err = err
	}
	return n, err
}

// inherited is the stream for the command: a file itself, which the command then shares.
func (s *stream) inherited() io.Writer {
	if f, ok := s.w.(*os.File); ok {
		return f
	}
	return s
}

// printf writes one line to stderr.
func (c *console) printf(format string, args ...any) { c.lines.put(false, format, args...) }

// A backlog writes lines in the background, so that a slow reader of stderr delays neither the
// command nor the release of its lock.
type backlog struct {
	w              io.Writer
	lines          chan string
	stop, finished chan struct{}
}

func newBacklog(w io.Writer) *backlog {
	b := &backlog{w, make(chan string, 256), make(chan struct{}), make(chan struct{})}
	go b.write()
	return b
}

// put queues a line. An optional one is dropped if many wait, any if very many do.
func (b *backlog) put(optional bool, format string, args ...any) {
	if optional && len(b.lines) > cap(b.lines)/2 {
		return
	}
	select {
	case b.lines <- "dlock: " + printable.Line(strings.TrimPrefix(fmt.Sprintf(format, args...), "dlock: ")) + "\n":
	default:
	}
}

func (b *backlog) write() {
	defer close(b.finished)
	for stop := b.stop; stop != nil || len(b.lines) > 0; {
		select {
		case line := <-b.lines:
			_, _ = io.WriteString(b.w, line) // nobody is left to be told
		case <-stop:
			stop = nil // write the rest
		}
	}
}

// close waits until all lines are written.
func (b *backlog) close() {
	close(b.stop)
	<-b.finished
}

// exitError ends the program with a code, and a line on stderr unless text is empty.
type exitError struct {
	code int
	text string
}

func (f *exitError) Error() string { return f.text }

func failf(code int, format string, args ...any) error {
	return &exitError{code, fmt.Sprintf(format, args...)}
}

// exitCode writes the line of an error, and returns its exit code.
func (c *console) exitCode(err error) int {
	var f *exitError
	if err = failure(err); !errors.As(err, &f) {
		return 0
	}
	if f.text != "" {
		c.printf("%s", f.text)
	}
	return f.code
}

// failure gives an error of package dlock or of a driver its exit code, and its message for users
// of the command.
func failure(err error) error {
	var f *exitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		return f
	case errors.Is(err, dlock.ErrInvalid):
		return failf(exitUsage, "%s", forUsers(err.Error()))
	case errors.Is(err, dlock.ErrLost):
		return failf(exitHeld, "%v: nothing was changed", err)
	case errors.Is(err, context.Canceled): // by a signal
		return &exitError{code: exitSignal + 2}
	}
	return failf(exitUnavailable, "%v: check the backend and its URL", err)
}

// waitingHelps reports whether the same call may succeed later.
func waitingHelps(err error) bool {
	var refused *driver.RefusedError
	return !errors.Is(err, dlock.ErrInvalid) && (!errors.As(err, &refused) || refused.RetryAfter > 0)
}

// forUsers replaces the names of dlock's options by the flags that set them, and the advice to a
// program's author to import a driver by one to a user of the command.
func forUsers(text string) string {
	text = strings.NewReplacer("WithTTL", "--ttl", "WithMinHold", "--at-least", "WithMaxHold", "--max-hold",
		"WithOwnerLabel", "--label", "WithShared", "--shared").Replace(text)
	before, rest, found := strings.Cut(text, " (forgotten import")
	if !found {
		return text
	}
	pkg, after, _ := strings.Cut(rest, ")")
	if strings.HasPrefix(pkg, " of ") { // a driver of this module
		before += " here; the command with all drivers: go install " + module + "/drivers/everything/cmd/dlock@latest"
	}
	return before + after
}

// module is the path of this package's module.
const module = "github.com/redlock-go/redlock"
