package dlock_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
)

// Text of servers and other clients reaches the log and the errors, but no terminal obeys it.
func TestErrorsAndLogsEscapeWhatDisturbsATerminal(t *testing.T) {
	const evil = "\x1b[2J\u009b31m\u202e\r"
	cause := errors.New("ERR " + evil + "\nagain")
	log := &lines{} // a handler that takes values as they are
	c, err := dlock.OpenURL("test:", dlock.WithLogger(slog.New(log)))
	if err != nil {
		t.Fatal(err)
	}
	testDriver.got.Notify(driver.Notice{Kind: driver.NoticeDegraded, Node: "n" + evil, Key: "k" + evil, Detail: "d" + evil, Err: cause})
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{(&dlock.Error{Op: "lock", Key: "k" + evil, Err: cause}).Error(), fmt.Sprint(log.all()[0].attrs)} {
		if strings.ContainsAny(s, "\x1b\u009b\u202e\r\n") || !strings.Contains(s, `ERR \x1b[2J\u009b31m\u202e`) {
			t.Errorf("got %q", s)
		}
	}
}
