package redlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/memory"
)

// remembering is a node that says what its server remembers, look after look; the last answer stays.
// "down" is an error, and "hangs" no answer. With "!" statements fail, and with "?" the second one does.
// "5" is a memory of a quorum of five.
type remembering struct {
	driver.Backend
	t      *testing.T
	name   string
	says   []string
	server string
	terms  *quorum.Terms
	looks  int
	stated string // n: new, c: changed
}

func (r *remembering) String() string { return r.name }

func (r *remembering) Bootstrap(ctx context.Context, b *quorum.Bootstrap) (*quorum.MemoryReport, error) {
	says := r.says[min(r.looks, len(r.says)-1)]
	if b.Quorum.WaitingSince != 0 {
		r.t.Errorf("%s is told that somebody waits", r.name)
	}
	if !b.DryRun {
		if (b.Quorum.Remembered != nil) != (b.Statement == quorum.StateChanged) || b.Observed == nil || b.Observed.Server != r.server {
			r.t.Errorf("the statement to %s is %+v", r.name, b)
		}
		r.stated += []string{"n", "c"}[b.Statement]
		if strings.HasSuffix(says, "!") || strings.HasSuffix(says, "?") && len(r.stated) == 2 {
			return nil, errors.New("no")
		}
		return &quorum.MemoryReport{}, nil
	}
	r.looks++
	terms := r.terms
	if n, err := strconv.Atoi(says); err == nil {
		says, terms = "kept", &quorum.Terms{N: n, Guard: b.Quorum.Guard}
	}
	switch says {
	case "down":
		return nil, errors.New(says)
	case "hangs":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for m := quorum.MemoryUnguarded; ; m++ {
		if m.String() == strings.TrimRight(says, "!?") {
			return &quorum.MemoryReport{Memory: m, Server: r.server, Clock: time.Now(), Terms: terms}, nil
		}
	}
}

// remember returns nodes, one for each word, which has a node's answers with "," between them.
func remember(t *testing.T, words string) (all []*remembering, nodes []driver.Backend) {
	for i, w := range strings.Fields(words) {
		name := fmt.Sprint("n", i)
		all = append(all, &remembering{Backend: memory.New(), t: t, name: name, server: name, says: strings.Split(w, ",")})
		nodes = append(nodes, all[i])
	}
	return all, nodes
}

// At the first contact a client looks whether the nodes are new, and states it if bootstrap is set. It
// looks again if nodes are slow, or if another client may be stating it.
func TestAFirstContact(t *testing.T) {
	for _, c := range []struct {
		nodes     string
		bootstrap bool
		timeout   time.Duration
		settled   bool
		looks     int
		stated    string
		blank     bool // all nodes were seen to remember nothing
	}{
		{"new new new", false, time.Second, true, 1, "", true},
		{"new new new", true, time.Second, true, 1, "nnn", true},
		{"new down new", true, time.Second / 4, false, 1, "", false},
		{"new hangs new", true, time.Second / 4, false, 2, "", false},
		{"new hangs new", true, time.Second, false, 1, "", false},
		{"new hangs,new new", true, time.Second / 4, true, 2, "nnn", true},
		{"kept down kept", true, time.Second, true, 1, "", false},
		{"kept kept kept", true, time.Second, true, 1, "", false},
		{"kept down down", true, time.Second, false, 1, "", false},
		{"kept new down", true, time.Second, true, 25, "", false},
		{"new flushed new", true, time.Second, true, 1, "", true},
		{"flushed flushed flushed", true, time.Second, true, 1, "", true},
		{"unguarded unguarded unguarded", true, time.Second, true, 1, "", true},
		{"unguarded new new", true, time.Second, true, 1, "nnn", true},
		{"new kept new", true, time.Second, true, 25, "", false},
		{"new,kept kept new,kept", true, time.Second, true, 2, "", false},
		{"new! new new,kept", true, time.Second, true, 25, "nnn", true},
	} {
		t.Run(fmt.Sprint(c.nodes, c.bootstrap, c.timeout), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all, nodes := remember(t, c.nodes)
				told := false
				b := opened(t, nodes, &Options{Guard: 20 * time.Second, Bootstrap: c.bootstrap, Notify: func(e driver.Notice) { told = told || e.Kind == quorum.NoticeBootstrapped }})
				began := time.Now()
				if settled := b.introduce(t.Context(), c.timeout); settled != c.settled || all[0].looks != c.looks || (b.blank.Load() != 0) != c.blank {
					t.Errorf("settled: %v after %d looks, nothing is remembered: %v", settled, all[0].looks, b.blank.Load() != 0)
				}
				if stated := all[0].stated + all[1].stated + all[2].stated; stated != c.stated || told != (c.stated != "" && all[0].says[0] != "new!") {
					t.Errorf("stated: %s, told: %v", stated, told)
				}
				if took := time.Since(began); c.looks == 25 && took != 500*time.Millisecond {
					t.Errorf("all looks took %v", took)
				}
				if known := b.floor(b.clock.Now()) != 0; known != (strings.Count(c.nodes, "down") < 2) {
					t.Errorf("the clocks of a majority are known: %v", known)
				}
			})
		})
	}
	// Without a guard there is no contact; one that settles nothing is followed by another.
	for words, want := range map[string]int{"new": 0, "new new new": 1, "down new new": 2} {
		synctest.Test(t, func(t *testing.T) {
			all, nodes := remember(t, words)
			o := &Options{Guard: 20 * time.Second}
			if want == 0 {
				o.Guard = -1
			}
			b := opened(t, nodes, o)
			for range 2 {
				drivertest.Must(t, b.meet(t.Context(), time.Second))
			}
			if all[0].looks != want {
				t.Errorf("%s: two calls look %d times, want %d", words, all[0].looks, want)
			}
		})
	}
}

// Bootstrap states something only if it can be true, and all nodes answer; a change is stated twice.
func TestAStatementToAllNodes(t *testing.T) {
	for _, c := range []struct {
		nodes     string
		statement quorum.Statement
		dry       bool
		stated    string
		done      int
		memory    quorum.Memory
		err       string
	}{
		{"new new new", quorum.StateNew, false, "n n n", 3, quorum.MemoryNew, ""},
		{"new new new", quorum.StateNew, true, "  ", 0, quorum.MemoryNew, ""},
		{"new new down", quorum.StateNew, false, "  ", 0, quorum.MemoryNew, "node n2: down"},
		{"new new down", quorum.StateNew, true, "  ", 0, quorum.MemoryNew, "node n2: down"},
		{"new kept new", quorum.StateNew, false, "  ", 0, quorum.MemoryKept, "the servers are not new: some of them remember locks"},
		{"new kept new", quorum.StateNew, true, "  ", 0, quorum.MemoryKept, ""},
		{"new flushed new!", quorum.StateNew, false, "n n n", 2, quorum.MemoryFlushed, "node n2: no"},
		{"kept new kept", quorum.StateChanged, false, "cc cc cc", 3, quorum.MemoryKept, ""},
		{"kept new kept", quorum.StateChanged, true, "  ", 0, quorum.MemoryKept, ""},
		{"kept! new kept", quorum.StateChanged, false, "c c c", 2, quorum.MemoryKept, "node n0: no"},
		{"kept? new kept", quorum.StateChanged, false, "cc cc cc", 2, quorum.MemoryKept, "node n0: no"},
		{"unguarded unguarded unguarded", quorum.StateChanged, false, "  ", 0, quorum.MemoryUnguarded, ""},
		{"1 new new", quorum.StateChanged, false, "cc cc cc", 3, quorum.MemoryKept, ""},
		{"2 2 new", quorum.StateChanged, false, "cc cc cc", 3, quorum.MemoryKept, ""},
		{"4 4 new", quorum.StateChanged, false, "cc cc cc", 3, quorum.MemoryKept, ""},
		{"5 5 5", quorum.StateChanged, false, "cc cc cc", 3, quorum.MemoryKept, ""},
		{"3 5 5", quorum.StateChanged, false, "cc cc cc", 3, quorum.MemoryKept, ""},
		{"3 new new", quorum.StateChanged, false, "cc cc cc", 3, quorum.MemoryKept, ""},
		{"2 new new", quorum.StateChanged, false, "cc cc cc", 3, quorum.MemoryKept, ""},
		{"4 new new", quorum.StateChanged, false, "  ", 0, quorum.MemoryKept, "of the 4 nodes of the old list 3 are not in this one"},
		{"5 5 new", quorum.StateChanged, false, "  ", 0, quorum.MemoryKept, "of the 5 nodes of the old list 3 are not in this one"},
		{"7 7 7", quorum.StateChanged, false, "  ", 0, quorum.MemoryKept, "of the 7 nodes of the old list 4 are not in this one"},
		{"7 7 7", quorum.StateChanged, true, "  ", 0, quorum.MemoryKept, "of the 7 nodes of the old list 4 are not in this one"},
		{"kept kept same", quorum.StateChanged, false, "  ", 0, quorum.MemoryKept, "nodes n0 and n2 are the same server"},
		{"kept kept same", quorum.StateChanged, true, "  ", 0, quorum.MemoryKept, "nodes n0 and n2 are the same server"},
	} {
		t.Run(fmt.Sprint(c.nodes, c.statement, c.dry), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all, nodes := remember(t, strings.Replace(c.nodes, "same", "kept", 1))
				if strings.HasSuffix(c.nodes, "same") {
					all[2].server = "n0"
				}
				b := opened(t, nodes, &Options{Guard: 20 * time.Second})
				r, err := b.Bootstrap(t.Context(), &quorum.Bootstrap{Statement: c.statement, DryRun: c.dry})
				if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.HasPrefix(err.Error(), c.err)) {
					t.Errorf("got %v, want %s", err, c.err)
				}
				done := 0
				for i, n := range r.Nodes {
					if n.Done {
						done++
					}
					if n.Node != all[i].name || (n.Report == nil) != (all[i].says[0] == "down") {
						t.Errorf("the report is %+v", n)
					}
				}
				if stated := all[0].stated + " " + all[1].stated + " " + all[2].stated; stated != c.stated || done != c.done || r.Memory != c.memory || *r.Terms != b.terms {
					t.Errorf("stated: %q, and done on %d nodes: %+v", stated, done, r)
				}
			})
		})
	}
	_, nodes := remember(t, "new")
	b := opened(t, nodes, nil)
	drivertest.Must(t, b.Close())
	if _, err := b.Bootstrap(t.Context(), &quorum.Bootstrap{}); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A change of the terms keeps the protections of what any node remembers, unless all remember the new permissions.
func TestAChangeKeepsTheProtectionsThatNodesRemember(t *testing.T) {
	terms := func(guard, allowance time.Duration) *quorum.Terms {
		d := derive(3, guard, allowance, 1)
		return &d
	}
	own := *terms(20*time.Second, 50*time.Millisecond)
	longer, wider := terms(30*time.Second, 50*time.Millisecond), terms(20*time.Second, 80*time.Millisecond)
	shy, odd := terms(30*time.Second, 40*time.Millisecond), own
	odd.Quarantine, odd.Drift = own.Quarantine*3, 7
	_, nodes := remember(t, "kept kept kept")
	b := opened(t, nodes, &Options{Guard: own.Guard, ClockAllowance: own.Allowance, DriftPercent: own.Drift})
	for name, c := range map[string]struct {
		remembered [3]*quorum.Terms
		want       func(*quorum.Terms)
	}{
		"all the same":               {[3]*quorum.Terms{&own, &own, &own}, func(*quorum.Terms) {}},
		"all permit the same":        {[3]*quorum.Terms{&own, &odd, &own}, func(*quorum.Terms) {}},
		"one remembers nothing":      {[3]*quorum.Terms{nil, &odd, &own}, func(w *quorum.Terms) { w.Quarantine, w.Drift = odd.Quarantine, 7 }},
		"one had longer leases":      {[3]*quorum.Terms{&own, longer, &own}, func(w *quorum.Terms) { w.Quarantine = longer.Quarantine }},
		"one had clocks further off": {[3]*quorum.Terms{wider, &own, &own}, func(w *quorum.Terms) { w.Quarantine, w.Grace = wider.Quarantine, wider.Grace }},
		"one excused less":           {[3]*quorum.Terms{&own, &own, shy}, func(w *quorum.Terms) { w.Quarantine = shy.Quarantine + own.Excuse - shy.Excuse }},
	} {
		var seen []*quorum.MemoryReport
		for _, r := range c.remembered {
			seen = append(seen, &quorum.MemoryReport{Terms: r})
		}
		kept := own
		c.want(&kept)
		if got := b.changed(seen); *got != kept {
			t.Errorf("%s: %+v, want %+v", name, *got, kept)
		}
	}
	if got := b.changed([]*quorum.MemoryReport{nil, {Terms: &odd}, nil}); got.Drift != 7 {
		t.Errorf("without two answers: %+v", got)
	}
}

// A client that knows no clocks proposes no token: in its first contact without a guard, and after two idle minutes.
// A late node's vote is then above the lease's token. It is given back, and the node takes the lease at the next renewal.
func TestANodeThatVotesLateTakesTheLeaseSoon(t *testing.T) {
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		for _, guard := range []time.Duration{-1, 10 * time.Second} {
			t.Run(fmt.Sprint(mode, guard), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { voteLate(t, mode, guard) })
			})
		}
	}
}

func voteLate(t *testing.T, mode driver.Mode, guard time.Duration) {
	servers, nodes := simNodes(make([]network, 5)...)
	for i := range nodes {
		nodes[i].(*simNode).life = time.Hour
	}
	b := opened(t, nodes, &Options{Guard: guard, Bootstrap: guard > 0})
	r := request1(simKeyName, "o", 5*time.Second)
	r.Mode = mode
	if guard > 0 { // which asks for the clocks
		drivertest.Must(t, drivertest.Grant(t, b, r).Release(t.Context()))
		time.Sleep(offsetLife + time.Second)
	}
	late := servers[4]
	late.pause(50 * time.Millisecond)
	l := drivertest.Grant(t, b, r)
	token := l.Grant().Fence
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
	if k := late.key(); k.counter > token || !k.free() {
		t.Errorf("beside token %d the late vote leaves the counter at %d, and free: %v", token, k.counter, k.free())
	}
	drivertest.Renew(t, l, r.TTL)
	time.Sleep(time.Millisecond)
	synctest.Wait()
	if k := late.key(); k.free() || k.counter != token {
		t.Errorf("after the renewal of token %d its key is %+v", token, k)
	}
	drivertest.Must(t, l.Release(t.Context()))
}
