//go:build unix

package postgres_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest/server"
)

const contenderURL = "REDLOCK_POSTGRES_CONTENDER_URL"

// A locker takes and gives one lock, first come, first served.
type locker interface {
	lock(ctx context.Context) (fence uint64, attempts int, err error)
	unlock() error
}

// oursLocker locks with the driver.
type oursLocker struct {
	b driver.Backend
	l driver.Lease
}

// lock waits as dlock does, and repeats attempts with unknown outcomes: if the machine stands
// still for a second, the server takes back a lock whose grant was not confirmed.
func (o *oursLocker) lock(ctx context.Context) (_ uint64, attempts int, err error) {
	for {
		r := request("contended", 10*time.Second)
		r.Wait = true
		attempts++
		if o.l, err = o.b.Acquire(ctx, r); err == nil {
			return o.l.Grant().Fence, attempts, nil
		}
		var refused *driver.RefusedError
		if attempts == 5 || ctx.Err() != nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrInvalid) || errors.As(err, &refused) {
			return 0, attempts, err
		}
		fmt.Fprintln(os.Stderr, "a contender tries again:", err)
	}
}

func (o *oursLocker) unlock() error { return o.l.Release(context.Background()) }

// bareLocker is pg_advisory_lock on a connection of its own.
type bareLocker struct {
	c *pgx.Conn
	n uint64
}

func (o *bareLocker) lock(ctx context.Context) (uint64, int, error) {
	_, err := o.c.Exec(ctx, "SELECT pg_advisory_lock(7)")
	return o.n, 1, err
}

func (o *bareLocker) unlock() error {
	_, err := o.c.Exec(context.Background(), "SELECT pg_advisory_unlock(7)")
	return err
}

// contender is the main function of the process. It obeys the commands in its input, a line
// each, and ends with the input.
//
//	contend D: takes and gives the lock repeatedly, for D, and prints when it held it
func contender(url, kind string) error {
	ctx := context.Background()
	var l locker
	if kind == "bare" {
		c, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer c.Close(ctx) //nolint:errcheck // the process ends
		l = &bareLocker{c: c}
	} else {
		b, err := open(url)
		if err != nil {
			return err
		}
		defer b.Close() //nolint:errcheck // the process ends
		l = &oursLocker{b: b}
		warm, err := take(b, request("warm"+strconv.Itoa(os.Getpid()), 10*time.Second))
		if err != nil {
			return err
		}
		if err := warm.Release(ctx); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		_, arg, _ := strings.Cut(in.Text(), " ")
		d, err := time.ParseDuration(arg)
		if err != nil {
			return err
		}
		if err := contend(ctx, l, d); err != nil {
			return err
		}
		fmt.Println("done")
	}
	return nil
}

func contend(ctx context.Context, l locker, d time.Duration) error {
	out := bufio.NewWriter(os.Stdout)
	for end := time.Now().Add(d); time.Now().Before(end); {
		if _, _, err := l.lock(ctx); err != nil {
			return err
		}
		got := time.Now().UnixNano()
		fmt.Fprintln(out, got, time.Now().UnixNano())
		if err := l.unlock(); err != nil {
			return err
		}
	}
	return out.Flush()
}

// process is the parent's side of a contender.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// contenders starts n processes, and returns when all are connected.
func contenders(t *testing.T, url, kind string, n int) []*process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var all []*process
	for range n {
		p := &process{cmd: exec.Command(exe)}
		p.cmd.Env = append(os.Environ(), contenderURL+"="+url, contenderURL+"_KIND="+kind)
		p.cmd.Stderr = os.Stderr
		if p.in, err = p.cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		out, err := p.cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		p.out = bufio.NewScanner(out)
		if err := p.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		})
		all = append(all, p)
	}
	for _, p := range all {
		if line := p.line(); line != "ready" {
			t.Fatalf("a contender says %q", line)
		}
	}
	return all
}

func (p *process) line() string {
	p.out.Scan()
	return p.out.Text()
}

func (p *process) tell(t *testing.T, word string, d time.Duration) {
	t.Helper()
	if _, err := fmt.Fprintln(p.in, word, d); err != nil {
		t.Fatal(err)
	}
}

// end lets processes end by themselves: all at once, since a program with the race
// detector takes a second for it.
func end(t *testing.T, all []*process) {
	t.Helper()
	for _, p := range all {
		_ = p.in.Close()
	}
	for _, p := range all {
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("a contender: %v", err)
		}
	}
}

// held is one hold of the lock by a process.
type held struct {
	process   int
	got, gave int64
}

// Processes that want one key all the time exclude each other and hand it over. Their speed is
// compared with pg_advisory_lock on as many connections, in turns: on a busy machine the ratio
// says more than the figures.
func TestProcessesHandTheLockOver(t *testing.T) {
	if testing.Short() {
		t.Skip("short: it starts many processes")
	}
	s := server.Postgres(t, server.WithSetting("max_connections", "200"))
	for _, n := range []int{8, 2, 32} {
		if n != 8 && !*long {
			continue
		}
		took := map[string][]time.Duration{}
		grants := map[string][]int{}
		all := map[string][]*process{}
		for _, kind := range []string{"bare", "ours"} {
			all[kind] = contenders(t, s.URL(), kind, n)
			grants[kind] = make([]int, n)
		}
		for range 5 {
			for _, kind := range []string{"bare", "ours"} {
				took[kind] = append(took[kind], handoffs(t, contest(t, all[kind], 100*time.Millisecond), grants[kind])...)
			}
		}
		for _, kind := range []string{"bare", "ours"} {
			end(t, all[kind])
			slices.Sort(took[kind])
			d := took[kind]
			t.Logf("%d processes, %s: %d handoffs in %v (p99 %v); per process %d to %d", n, kind, len(d),
				d[len(d)/2], d[len(d)*99/100], slices.Min(grants[kind]), slices.Max(grants[kind]))
			if slices.Min(grants[kind]) == 0 {
				t.Errorf("%d processes, %s: one was never served: %v", n, kind, grants[kind])
			}
		}
		t.Logf("%d processes: %.2f × bare", n, float64(took["ours"][len(took["ours"])/2])/float64(took["bare"][len(took["bare"])/2]))
	}
}

// contest lets the processes contend for a while.
func contest(t *testing.T, all []*process, d time.Duration) []held {
	t.Helper()
	for _, p := range all {
		p.tell(t, "contend", d)
	}
	had := make([][]held, len(all))
	var wg sync.WaitGroup
	for i, p := range all {
		wg.Go(func() {
			for line := p.line(); line != "done"; line = p.line() {
				h := held{process: i}
				if _, err := fmt.Sscan(line, &h.got, &h.gave); err != nil {
					t.Errorf("process %d says %q", i, line)
					return
				}
				had[i] = append(had[i], h)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return slices.Concat(had...)
}

// handoffs returns how long each took, and asserts that no two had the lock at once.
func handoffs(t *testing.T, had []held, grants []int) []time.Duration {
	t.Helper()
	slices.SortFunc(had, func(a, b held) int { return int(a.got - b.got) })
	var took []time.Duration
	for i, h := range had {
		grants[h.process]++
		if i == 0 {
			continue
		}
		last := had[i-1]
		if h.got < last.gave {
			t.Fatalf("process %d had the lock %v before process %d gave it", h.process, time.Duration(last.gave-h.got), last.process)
		}
		if h.process != last.process {
			took = append(took, time.Duration(h.got-last.gave))
		}
	}
	if len(took) == 0 {
		t.Fatalf("%d grants, and none went to another process", len(had))
	}
	return took
}
