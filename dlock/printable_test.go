package dlock_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// plainHandler writes values as they are.
type plainHandler struct{ b bytes.Buffer }

func (*plainHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h *plainHandler) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h *plainHandler) WithGroup(string) slog.Handler          { return h }
func (h *plainHandler) Handle(_ context.Context, r slog.Record) error {
	h.b.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool { h.b.WriteString(" " + a.String()); return true })
	h.b.WriteByte('\n')
	return nil
}

// Text of servers and other clients reaches the log and the errors, but no terminal obeys it.
func TestErrorsAndLogsEscapeWhatDisturbsATerminal(t *testing.T) {
	const evil = "\x1b[2J\u009b31m\u202e\r"
	cause := errors.New("ERR " + evil + "\nagain")
	var log plainHandler
	var text string
	synctest.Test(t, func(t *testing.T) {
		notify := func(driver.Notice) {}
		dlock.Register("printable", driverFunc(func(cfg *driver.Config) (driver.Backend, error) {
			notify = cfg.Notify
			return memory.New(), nil
		}))
		c, err := dlock.OpenURL("printable:", dlock.WithLogger(slog.New(&log)))
		if err != nil {
			t.Fatal(err)
		}
		notify(driver.Notice{Kind: driver.NoticeDegraded, Node: "n" + evil, Key: "k" + evil, Detail: "d" + evil, Err: cause})
		text = (&dlock.Error{Op: "lock", Key: "k" + evil, Err: cause}).Error()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
	})
	for _, s := range []string{text, strings.TrimSuffix(log.b.String(), "\n")} {
		if strings.ContainsAny(s, "\x1b\u009b\u202e\r\n") || !strings.Contains(s, `ERR \x1b[2J\u009b31m\u202e`) {
			t.Errorf("got %q", s)
		}
	}
}

type driverFunc func(*driver.Config) (driver.Backend, error)

func (f driverFunc) Open(cfg *driver.Config) (driver.Backend, error) { return f(cfg) }
