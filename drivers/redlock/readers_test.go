package redlock_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
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

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var (
	processes = flag.Int("redlock.processes", 64, "how many processes lock one key, mostly to read")
	hold      = flag.Duration("redlock.hold", 10*time.Millisecond, "for how long each of them holds it")
)

// asReader in the environment makes this test binary a process that locks a key of this URL.
const asReader, asNumber, locksOfEach = "REDLOCK_TEST_READER", "REDLOCK_TEST_NUMBER", 40

// readAndWrite locks the key again and again, one time in twenty to write. It writes each step in a line: its number, whether it
// writes, and "asks", "has" with the token and how long it waited, or "ends", before the release.
func readAndWrite(url string) error {
	id, _ := strconv.Atoi(os.Getenv(asNumber))
	c, err := dlock.OpenURL(url, dlock.WithLogger(nil), dlock.WithTTL(30*time.Second))
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // the process ends
	lock := func(key string, opts ...dlock.LockOption) (*dlock.Lease, error) {
		for { // a busy machine's nodes may answer late
			if l, err := c.Lock(context.Background(), key, opts...); !errors.Is(err, dlock.ErrUnavailable) {
				return l, err
			}
		}
	}
	own, err := lock(fmt.Sprint("own", id)) // it is connected
	if err != nil {
		return err
	}
	_ = own.Unlock()
	fmt.Println(id, false, "ready", 0, 0)
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	for i := range locksOfEach {
		writes, opts := (id+i)%20 == 0, []dlock.LockOption{dlock.WithShared()}
		if writes {
			opts = nil
		}
		fmt.Println(id, writes, "asks", 0, 0)
		asked := time.Now()
		l, err := lock("hot", opts...)
		if err != nil {
			return err
		}
		fmt.Println(id, writes, "has", l.Fence(), int64(time.Since(asked)))
		time.Sleep(*hold)
		fmt.Println(id, writes, "ends", 0, 0)
		if err := l.Unlock(); err != nil && !errors.Is(err, dlock.ErrUnavailable) {
			return err
		}
	}
	return nil
}

// TestMostlyReaders: of many processes that lock one key, all are served, readers overlap, and no reader is beside a writer. The
// token of a writer is above all before it, a reader's above those of all writers before it. One node of five may be gone.
func TestMostlyReaders(t *testing.T) {
	server.Deep(t)
	c := start(t, 5)
	five, none := c.url("ABDE", "bootstrap=true"), func() error { return nil }
	for _, scene := range []struct {
		name, url  string
		harm, heal func() error
	}{
		{"Redis", "redis://" + c.servers[0].Addr(), none, none},
		{"Valkey", "valkey://" + c.servers[1].Addr(), none, none},
		{"five nodes", five, none, none},
		{"one is slow", five, func() error { c.proxies[2].RTT(50 * time.Millisecond); return nil }, c.proxies[2].Restore},
		{"one is stopped", five, c.servers[2].Pause, c.servers[2].Resume},
		{"one is killed", five, c.servers[2].Kill, c.servers[2].Start},
	} {
		t.Run(scene.name, func(t *testing.T) { mostlyReaders(t, scene.url, scene.harm, scene.heal) })
	}
}

func mostlyReaders(t *testing.T, url string, harm, heal func() error) {
	steps, all, err := os.Pipe() // of all processes, so that their steps are in order
	drivertest.Must(t, err)
	defer steps.Close() //nolint:errcheck // all was read
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var begin []io.WriteCloser
	var running sync.WaitGroup
	for id := range *processes {
		cmd := exec.CommandContext(ctx, os.Args[0], "-redlock.hold="+hold.String())
		cmd.Env = append(os.Environ(), asReader+"="+url, asNumber+"="+strconv.Itoa(id))
		cmd.Stdout = all
		var complaint strings.Builder
		cmd.Stderr = &complaint
		in, err := cmd.StdinPipe()
		drivertest.Must(t, err)
		begin = append(begin, in)
		drivertest.Must(t, cmd.Start())
		running.Go(func() {
			if err := cmd.Wait(); err != nil && ctx.Err() == nil {
				t.Errorf("process %d: %v: %s", id, err, &complaint)
				cancel()
			}
		})
	}
	drivertest.Must(t, all.Close())
	type process struct {
		least uint64 // its token must be above
		alone bool   // no other writer was there
	}
	var readers, writers, there, ready, together, most int // there: writers that ask or have it
	var highest, written uint64
	var waits [3][]time.Duration // of readers, of writers, and of those before whom no other writer was
	procs := make([]process, *processes)
	for lines := bufio.NewScanner(steps); lines.Scan(); {
		var id int
		var writes bool
		var step string
		var token uint64
		var waited int64
		if _, err := fmt.Sscan(lines.Text(), &id, &writes, &step, &token, &waited); err != nil {
			t.Fatal(lines.Text(), err)
		}
		p := &procs[id]
		switch step {
		case "ready":
			if ready++; ready < len(begin) {
				break
			}
			drivertest.Must(t, harm())
			for _, in := range begin {
				_, _ = io.WriteString(in, "\n") // its end is told below
			}
		case "asks":
			*p = process{least: written}
			if writes {
				p.least, p.alone = highest, there == 0
				there++
			}
		case "has":
			if token <= p.least {
				t.Errorf("token %d, after %d", token, p.least)
			}
			highest = max(highest, token)
			if writes {
				writers++
				written = max(written, token)
				waits[1] = append(waits[1], time.Duration(waited))
				if p.alone {
					waits[2] = append(waits[2], time.Duration(waited))
				}
			} else {
				if readers++; readers > 1 {
					together++
				}
				waits[0] = append(waits[0], time.Duration(waited))
			}
			if most = max(most, readers); writers > 1 || writers > 0 && readers > 0 {
				t.Errorf("%d writers and %d readers have the lock", writers, readers)
			}
		case "ends":
			if writes {
				writers--
				there--
			} else {
				readers--
			}
		}
	}
	running.Wait()
	drivertest.Must(t, heal())
	if t.Failed() {
		return
	}
	text := ""
	for i, of := range []string{"readers", "writers", "writers behind no other writer"} {
		slices.Sort(waits[i])
		if n := len(waits[i]); n > 0 {
			text += fmt.Sprintf("; %d %s wait p50 %v, p99 %v", n, of, waits[i][n/2].Round(time.Microsecond), waits[i][n*99/100].Round(time.Microsecond))
		}
	}
	t.Logf("%d processes hold for %v: %d readers beside others, at most %d at a time%s", *processes, *hold, together, most, text)
	if want := *processes * locksOfEach; len(waits[0])+len(waits[1]) != want {
		t.Errorf("%d locks, want %d", len(waits[0])+len(waits[1]), want)
	}
	if most < *processes/4 {
		t.Errorf("at most %d of %d processes had the lock at a time", most, *processes)
	}
}

// reads takes the lock as a reader, as soon as the nodes let it.
func (c *cluster) reads(b driver.Backend, key string, ttl time.Duration) (l driver.Lease) {
	c.t.Helper()
	c.until(func() (err error) {
		req := ask(key, ttl)
		req.Mode = driver.Shared
		l, err = b.Acquire(context.Background(), req)
		return err
	})
	return l
}

// readers returns the owners whom node i has as readers of the key.
func (c *cluster) readers(i int, key string) (owners []string) {
	c.t.Helper()
	members, _ := c.do(i, "ZRANGE", "redlock1:readers:{"+key+"}", "0", "-1").([]any)
	for _, m := range members {
		if owner, token, ok := strings.Cut(m.(string), "|"); ok {
			owners = append(owners, owner+"|"+token)
		}
	}
	return owners
}

// A reader has a lock at each node, and each reader is shown. One that lost a node takes it again, beside those who
// came later.
func TestReadersOnRealServers(t *testing.T) {
	long(t)
	t.Parallel()
	const key, ttl = "readers", time.Minute
	c := start(t, 3)
	a, b := c.open("", unguarded, calm), c.open("", unguarded, calm)
	first := c.reads(a, key, ttl)
	c.until(func() error { // a majority was enough
		c.renew(first, ttl)
		for i, v := range first.Grant().Votes {
			if !v.Granted || len(c.readers(i, key)) != 1 {
				return fmt.Errorf("node %d has the readers %v: %+v", i, c.readers(i, key), v)
			}
		}
		return nil
	})
	mine := c.readers(2, key)[0]
	second := c.reads(b, key, ttl)
	c.until(func() error {
		s, err := a.Lookup(t.Context(), key)
		if err != nil {
			return err
		}
		var tokens []uint64
		for _, h := range s.Holders {
			tokens = append(tokens, h.Fence)
		}
		slices.Sort(tokens)
		if want := []uint64{first.Grant().Fence, second.Grant().Fence}; s.Mode != driver.Shared || !slices.Equal(tokens, want) {
			return fmt.Errorf("%v holders with tokens %v, want shared ones with %v", s.Mode, tokens, want)
		}
		return nil
	})

	// The first reader's time ends early at one node, where another comes.
	c.do(2, "ZREM", "redlock1:readers:{"+key+"}", mine)
	c.reads(b, key, ttl)
	c.until(func() error {
		c.renew(first, ttl)
		all := c.readers(2, key)
		if !slices.ContainsFunc(all, func(m string) bool { return strings.HasSuffix(m, fmt.Sprint("|", first.Grant().Fence)) }) {
			return fmt.Errorf("the node that the first reader lost has %v", all)
		}
		return nil
	})
}
