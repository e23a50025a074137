//go:build unix

package dlock_test

import (
	"cmp"
	"encoding/json"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	faults "github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A term is one hold of the lock, or of a slot, by a worker, as far as it and its parent know.
type term struct {
	worker   *worker
	slot     int
	token    uint64
	from     time.Time
	deadline time.Time // the last deadline that the worker reported; zero: it has none
	gave     time.Time // when it began to give it back
}

// until is the latest end of the term: no other worker may have the lock before. It is zero if
// it is unknown.
func (t *term) until() time.Time {
	var end time.Time
	for _, at := range []time.Time{t.deadline, t.gave, t.worker.killed} {
		if !at.IsZero() && (end.IsZero() || at.Before(end)) {
			end = at
		}
	}
	return end
}

// A pool has the workers of one job, and their terms.
type pool struct {
	t   *testing.T
	job job

	mu    sync.Mutex
	terms []*term
	all   []*worker
}

type worker struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	proxies []*faults.Proxy
	killed  time.Time // just before it was
	ended   chan struct{}
}

// start starts one more worker. It reaches the servers, if there are any, through proxies of
// its own.
func (c *pool) start(servers []*server.Server) *worker {
	c.t.Helper()
	j, w := c.job, &worker{ended: make(chan struct{})}
	for _, s := range servers {
		p := faults.NewProxy(c.t, s.Addr())
		w.proxies = append(w.proxies, p)
		j.URL = strings.ReplaceAll(j.URL, s.Addr(), p.Addr())
	}
	text, err := json.Marshal(&j)
	if err != nil {
		c.t.Fatal(err)
	}
	w.cmd = exec.Command(os.Args[0])
	w.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "GOMAXPROCS=1", asWorker+"="+string(text))
	w.cmd.Stderr = os.Stderr
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		c.t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	c.all = append(c.all, w)
	c.mu.Unlock()
	go func() {
		defer close(w.ended)
		for d := json.NewDecoder(out); ; {
			var r report
			if d.Decode(&r) != nil {
				break // it has ended
			}
			c.note(w, r)
		}
		_ = w.cmd.Wait() // it was killed
	}()
	c.t.Cleanup(func() { w.kill(c) })
	return w
}

// kill kills the worker and returns when all its reports are recorded.
func (w *worker) kill(c *pool) {
	c.mu.Lock()
	if w.killed.IsZero() {
		w.killed = time.Now()
	}
	c.mu.Unlock()
	_ = w.cmd.Process.Kill() // it may have ended
	<-w.ended
}

func (c *pool) note(w *worker, r report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := func(ns int64) (t time.Time) {
		if ns != 0 {
			t = time.Unix(0, ns)
		}
		return t
	}
	if r.What == "got" {
		c.terms = append(c.terms, &term{worker: w, slot: r.Slot, token: r.Token, from: at(r.At), deadline: at(r.Until)})
		return
	}
	for _, t := range slices.Backward(c.terms) {
		if t.worker != w || t.token != r.Token || r.What == "gave" && t.slot != r.Slot {
			continue
		}
		if r.What == "gave" {
			t.gave = at(r.At)
		} else {
			t.deadline = at(r.Until)
		}
		return
	}
}

// last returns the term that began last, nil if none did after an instant.
func (c *pool) last(after time.Time) *term {
	c.mu.Lock()
	defer c.mu.Unlock()
	var last *term
	for _, t := range c.terms {
		if t.from.After(after) && (last == nil || t.from.After(last.from)) {
			last = t
		}
	}
	return last
}

// first returns the first term that began after an instant. It waits for one.
func (c *pool) first(after time.Time) *term {
	c.t.Helper()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		c.mu.Lock()
		var first *term
		for _, t := range c.terms {
			if t.from.After(after) && (first == nil || t.from.Before(first.from)) {
				first = t
			}
		}
		c.mu.Unlock()
		if first != nil {
			return first
		}
	}
	c.mu.Lock()
	last := *c.terms[len(c.terms)-1]
	c.mu.Unlock()
	c.t.Fatalf("nobody has got the lock since %v; the last was %+v", after, last)
	return nil
}

// check kills all workers, and compares the terms of each slot: none begins before those before it
// have ended, and tokens rise.
func (c *pool) check() (terms int) {
	c.t.Helper()
	c.mu.Lock()
	all := slices.Clone(c.all)
	c.mu.Unlock()
	for _, w := range all {
		w.kill(c)
	}
	slices.SortFunc(c.terms, func(a, b *term) int { return cmp.Or(cmp.Compare(a.slot, b.slot), a.from.Compare(b.from)) })
	var before *term // of this slot, the one that ends last
	for _, t := range c.terms {
		if before != nil && before.slot == t.slot {
			if end := before.until(); end.IsZero() || t.from.Before(end) {
				c.t.Errorf("slot %d: token %d is held from %v on, and token %d until %v", t.slot, t.token, t.from, before.token, before.until())
			}
			if t.token <= before.token {
				c.t.Errorf("slot %d: token %d comes after token %d", t.slot, t.token, before.token)
			}
			if end := t.until(); !end.IsZero() && end.Before(before.until()) {
				continue
			}
		}
		before = t
	}
	return len(c.terms)
}

var leadersFor = flag.Duration("leaders", 0, "kill, stop and partition leaders of twenty candidates for so long; zero: a few of each, of six")

// Leaders of many candidates, each a process, are killed, stopped, cut off from their servers,
// or resign: there are never two by their leases' deadlines. The log shows how soon there is
// another leader. -leaders 5m makes the test run for five minutes.
func TestThereAreNeverTwoLeadersAmongProcesses(t *testing.T) {
	t.Parallel()
	if testing.Short() && *leadersFor == 0 {
		t.Skip("it takes seconds")
	}
	for name, start := range map[string]func(t *testing.T) (url string, servers []*server.Server){
		"redis": func(t *testing.T) (string, []*server.Server) {
			s := server.Redis(t)
			return s.URL(), []*server.Server{s}
		},
		"quorum": func(t *testing.T) (string, []*server.Server) { return quorumOf(t, 3) },
		"postgres": func(t *testing.T) (string, []*server.Server) {
			s := server.Postgres(t)
			return s.URL(), []*server.Server{s}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			candidates, ttl, end := 6, time.Second, time.Time{}
			if *leadersFor > 0 {
				candidates, ttl, end = 20, 3*time.Second, time.Now().Add(*leadersFor)
			}
			url, servers := start(t)
			c := &pool{t: t, job: job{URL: url, TTL: ttl}}
			for range candidates {
				c.start(servers)
			}
			c.rule(servers, ttl, end)
		})
	}
}

// quorumOf starts servers, both kinds in turns, and returns the URL of a majority of them.
func quorumOf(t *testing.T, n int) (string, []*server.Server) {
	var servers []*server.Server
	var urls []string
	for i := range n {
		s := server.StartFor(t, []server.Kind{server.KindRedis, server.KindValkey}[i%2])
		servers, urls = append(servers, s), append(urls, s.URL())
	}
	return "redlock:" + strings.Join(urls, ",") + ",bootstrap=true", servers
}

// rule ends one leader after another, until an instant, in each way at least once.
func (c *pool) rule(servers []*server.Server, ttl time.Duration, end time.Time) {
	ways := []string{"killed", "stopped", "partitioned", "resigned"}
	took := map[string][]time.Duration{}
	c.first(time.Time{})
	var mending sync.WaitGroup
	defer mending.Wait()
	for i := 0; i < len(ways) || time.Now().Before(end); i++ {
		way := ways[i%len(ways)]
		time.Sleep(time.Duration(rand.Int64N(int64(ttl)))) // it renews meanwhile, or does not
		leader := c.last(time.Time{})
		w, began := leader.worker, time.Now()
		after := ttl + time.Duration(rand.Int64N(int64(ttl)))
		switch way {
		case "killed":
			w.kill(c)
			c.start(servers)
		case "stopped":
			if err := w.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				c.t.Fatal(err)
			}
			mending.Go(func() {
				time.Sleep(after)
				_ = w.cmd.Process.Signal(syscall.SIGCONT) // it may have been killed meanwhile
			})
		case "partitioned":
			for _, p := range w.proxies {
				p.Pause()
			}
			mending.Go(func() {
				time.Sleep(after)
				for _, p := range w.proxies {
					p.Resume()
				}
			})
		case "resigned":
			if _, err := io.WriteString(w.in, "\n"); err != nil {
				c.t.Fatal(err)
			}
		}
		next := c.first(began)
		if way == "resigned" {
			c.mu.Lock()
			began = leader.gave
			c.mu.Unlock()
		}
		if !began.IsZero() && next.from.After(began) { // else the leader had changed
			took[way] = append(took[way], next.from.Sub(began))
		}
	}
	mending.Wait()
	terms := c.check()
	for _, way := range ways {
		all := took[way]
		if slices.Sort(all); len(all) > 0 {
			c.t.Logf("%d of %d leaders were %s: the next came after %v in the median, %v at most, with a TTL of %v", len(all), terms, way, all[len(all)/2].Round(10*time.Microsecond), all[len(all)-1].Round(10*time.Microsecond), ttl)
		}
	}
}

// Workers that hold slots are killed: there are never more holders than slots, in any history,
// and all slots are used.
func TestSlotsOfProcessesThatAreKilled(t *testing.T) {
	t.Parallel()
	const slots, workers, kills = 3, 5, 6
	for name, start := range map[string]func(t *testing.T) (url string, ttl time.Duration){
		"file":     func(t *testing.T) (string, time.Duration) { return "file://" + filepath.ToSlash(t.TempDir()), 0 },
		"redis":    func(t *testing.T) (string, time.Duration) { return server.Redis(t).URL(), time.Second },
		"valkey":   func(t *testing.T) (string, time.Duration) { return server.Valkey(t).URL(), time.Second },
		"quorum":   func(t *testing.T) (string, time.Duration) { url, _ := quorumOf(t, 3); return url, time.Second },
		"postgres": func(t *testing.T) (string, time.Duration) { return server.Postgres(t).URL(), time.Second },
	} {
		if testing.Short() && name != "file" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, ttl := start(t)
			c := &pool{t: t, job: job{URL: url, TTL: ttl, Slots: slots}}
			for range workers {
				c.start(nil)
			}
			for range kills {
				holder := c.first(time.Now())
				holder.worker.kill(c) // or just after it gave the slot back
				c.start(nil)
			}
			for end := time.Now().Add(2 * time.Minute); c.most() < slots; time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d of %d slots are used at a time", c.most(), slots)
				}
			}
			t.Logf("%d terms", c.check())
		})
	}
}

// most returns how many slots were held at the same time.
func (c *pool) most() (most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	terms := slices.Clone(c.terms)
	slices.SortFunc(terms, func(a, b *term) int { return a.from.Compare(b.from) })
	now := map[int]*term{}
	for _, t := range terms {
		for slot, other := range now {
			if end := other.until(); !end.IsZero() && !end.After(t.from) {
				delete(now, slot)
			}
		}
		now[t.slot] = t
		most = max(most, len(now))
	}
	return most
}
