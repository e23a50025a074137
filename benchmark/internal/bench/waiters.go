package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// processes wait for locks, each with a client of its own, as the
// processes of an application are. Each is this program, started once more, which is
// told by its standard input what to do and answers by its standard output:
//
//	job ──> ready ──> start ──> done
type processes struct {
	list []*waiter
}

// waiterVariable is set in the environment of a process that is to wait.
const waiterVariable = "REDLOCK_BENCHMARK_WAITS"

// A job says what a waiter must do.
type job struct {
	Contestant string
	Setup      Setup
	Key        string
	Hold       time.Duration
}

// A start is when it must begin; the clients of a case begin together.
type start struct {
	Until time.Time
}

// A ready says that a waiter has connected and had a lock, a done what it did.
type (
	ready struct{ Error string }
	done  struct {
		Holds []hold
		CPU   time.Duration
		Error string
	}
)

type waiter struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	to  *json.Encoder
	by  *json.Decoder
	say *bytes.Buffer // what it wrote as its last words
}

// start makes sure that there are at least n of them.
func (c *processes) start(n int) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	for len(c.list) < n {
		m := &waiter{cmd: exec.Command(program), say: &bytes.Buffer{}}
		m.cmd.Env = append(os.Environ(), waiterVariable+"=1")
		m.cmd.Stderr = m.say
		if m.in, err = m.cmd.StdinPipe(); err != nil {
			return err
		}
		out, err := m.cmd.StdoutPipe()
		if err != nil {
			return err
		}
		m.to, m.by = json.NewEncoder(m.in), json.NewDecoder(out)
		if err := m.cmd.Start(); err != nil {
			return err
		}
		c.list = append(c.list, m)
	}
	return nil
}

// close ends the processes.
func (c *processes) close() error {
	if c == nil {
		return nil
	}
	var errs []error
	for _, m := range c.list {
		_ = m.in.Close() // one that has gone is missed by Wait
	}
	for _, m := range c.list {
		if err := m.cmd.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("a process that waits for locks: %w: %s", err, firstLine(errors.New(m.say.String()))))
		}
	}
	c.list = nil
	return errors.Join(errs...)
}

// each calls f for the first n of them at once.
func (c *processes) each(n int, f func(i int, m *waiter) error) error {
	errs := make([]error, n)
	var running sync.WaitGroup
	for i, m := range c.list[:n] {
		running.Go(func() { errs[i] = f(i, m) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// prepare gives n of them a job, up to its beginning.
func (c *processes) prepare(n int, e *job) error {
	if err := c.start(n); err != nil {
		return err
	}
	return c.each(n, func(_ int, m *waiter) error {
		if err := m.to.Encode(e); err != nil {
			return err
		}
		var r ready
		if err := m.by.Decode(&r); err != nil {
			return err
		}
		return asError(r.Error)
	})
}

// run lets them do it.
func (c *processes) run(n int, until time.Time) ([]done, error) {
	all := make([]done, n)
	return all, c.each(n, func(i int, m *waiter) error {
		if err := m.to.Encode(start{until}); err != nil {
			return err
		}
		if err := m.by.Decode(&all[i]); err != nil {
			return err
		}
		return asError(all[i].Error)
	})
}

func asError(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

func asText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// IsWaiter reports whether this process was started to wait for locks.
func IsWaiter() bool { return os.Getenv(waiterVariable) != "" }

// Wait waits for locks as the process that started this one says, until in ends.
func Wait(in io.Reader, out io.Writer, peers []Contestant) error {
	ctx, contestants := context.Background(), append(Contestants(), peers...)
	by, to := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var e job
		if err := by.Decode(&e); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		l, err := e.open(ctx, contestants)
		if err := to.Encode(ready{asText(err)}); err != nil {
			return err
		}
		if err != nil {
			continue
		}
		var s start
		if err := by.Decode(&s); err != nil {
			return err
		}
		if err := to.Encode(e.do(ctx, l, s.Until)); err != nil {
			return err
		}
	}
}

// open opens the client and lets it have a lock of its own, so that it is connected.
func (e *job) open(ctx context.Context, contestants []Contestant) (Locker, error) {
	i := slices.IndexFunc(contestants, func(c Contestant) bool { return c.Name == e.Contestant })
	if i < 0 {
		return nil, fmt.Errorf("there is no %q", e.Contestant)
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return openWarm(ctx, contestants[i], &e.Setup, e.Key)
}

// openWarm opens a client that has had a lock on a key of its own, beside this one.
func openWarm(ctx context.Context, c Contestant, s *Setup, key string) (Locker, error) {
	l, err := c.Open(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	h, err := l.Lock(ctx, key+"/"+newOwner(), true)
	if err == nil {
		err = h.Unlock()
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (e *job) do(ctx context.Context, l Locker, until time.Time) (d done) {
	cpu := processCPU()
	var err error
	d.Holds, err = want(ctx, l, e.Key, e.Hold, until)
	d.CPU = processCPU() - cpu
	d.Error = asText(errors.Join(err, l.Close()))
	return d
}
