package redisnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Lookup returns who holds key. A foreign lock's holder is its value as a whole.
func (n *Node) Lookup(ctx context.Context, key string) (*driver.State, error) {
	switch {
	case n.closed.Load():
		return nil, driver.ErrClosed
	case key == "" || len(n.cfg.Prefix)+len(key) > driver.MaxKey:
		return nil, driver.Invalid("key", "must have 1 to %d bytes", driver.MaxKey-len(n.cfg.Prefix))
	}
	s, err := n.lookup(ctx, key)
	return s, n.explain(key, err)
}

func (n *Node) lookup(ctx context.Context, key string) (*driver.State, error) {
	keys, line := []string{n.names.lock(key), n.names.counter(key)}, n.names.waitQueue(key)
	a, err := n.try(ctx, opLookup, keys, func(*process) []string { return []string{"0", line} })
	if err != nil {
		return nil, err
	}
	now := a.learn(0)
	counter, _ := number(a.reply, 1)
	value, _ := text(a.reply, 2)
	pttl, _ := number(a.reply, 3)
	waiters, _ := number(a.reply, 4)
	s := &driver.State{Key: key, Fence: uint64(max(counter, 0)), Waiters: int(waiters)}
	left := time.Duration(max(pttl, 0)) * time.Millisecond
	switch {
	case pttl == -2 || now.IsZero():
		return s, nil
	case strings.HasPrefix(value, next):
		s.ReservedFor = max(left, time.Millisecond)
		return s, nil
	}
	h := driver.Holder{TTL: left}
	h.Owner, h.Fence = parse(value)
	if h.Fence > 0 {
		h.Since = time.UnixMicro(int64(h.Fence))
	}
	s.Holders = []driver.Holder{h}
	return s, nil
}

// lookupsAtOnce is how many keys List asks for at once: they share round trips.
const lookupsAtOnce = 256

// List yields the locks under prefix that this package gave and that are held now. It goes
// by the fencing counters, which the server itself finds among its keys; a lock of another
// library has none, and only Lookup tells of it.
func (n *Node) List(ctx context.Context, prefix string, yield func(*driver.State) bool) error {
	if n.closed.Load() {
		return driver.ErrClosed
	}
	errStop := errors.New("stop")
	err := n.cfg.Client.Each(ctx, func(ctx context.Context, s Server) error {
		return n.scan(ctx, s, prefix, func(keys []string) error {
			states, err := n.lookups(ctx, keys)
			for _, s := range states {
				if s != nil && len(s.Holders) > 0 && s.Holders[0].Fence > 0 && !yield(s) {
					return errStop
				}
			}
			return err
		})
	})
	if errors.Is(err, errStop) {
		return nil
	}
	return n.explain(prefix, err)
}

// lookups looks keys up, at once. The state of one that is no string is nil.
func (n *Node) lookups(ctx context.Context, keys []string) ([]*driver.State, error) {
	states, errs := make([]*driver.State, len(keys)), make([]error, len(keys))
	var wg sync.WaitGroup
	for i, key := range keys {
		wg.Go(func() {
			states[i], errs[i] = n.lookup(ctx, key)
			if isCode(errs[i], "WRONGTYPE") {
				errs[i] = nil
			}
		})
	}
	wg.Wait()
	return states, errors.Join(errs...)
}

// scan yields the keys of s under prefix that have a counter, each once, some at a time.
func (n *Node) scan(ctx context.Context, s Server, prefix string, yield func(keys []string) error) error {
	cursor, seen := "0", map[string]bool{}
	var found []string
	for {
		reply, err := s.Do(ctx, "SCAN", cursor, "MATCH", glob(n.names.counters())+"*", "COUNT", "1000")
		if err != nil {
			return err
		}
		page, ok := reply.([]any)
		if !ok || len(page) != 2 {
			return errGarbled
		}
		cursor, _ = page[0].(string)
		last := cursor == "0" || cursor == ""
		keys, _ := page[1].([]any)
		for _, k := range keys {
			name, _ := k.(string)
			key, ours := n.names.counted(name)
			if !ours || !strings.HasPrefix(key, prefix) || seen[key] {
				continue
			}
			seen[key] = true
			found = append(found, key)
		}
		for len(found) >= lookupsAtOnce || last && len(found) > 0 {
			some := min(len(found), lookupsAtOnce)
			if err := yield(found[:some]); err != nil {
				return err
			}
			found = found[some:]
		}
		if last {
			return nil
		}
	}
}

// glob escapes what SCAN's MATCH would take for a pattern.
func glob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}

// Break frees the lock, if its holder's token is fence, and wakes its waiters.
func (n *Node) Break(ctx context.Context, key string, fence uint64) error {
	if n.closed.Load() {
		return driver.ErrClosed
	}
	channel := n.names.channel(key)
	a, err := n.try(ctx, opBreak, []string{n.names.lock(key)}, func(*process) []string {
		return []string{"0", strconv.FormatUint(fence, 10), channel}
	})
	if err != nil {
		return n.explain(key, err)
	}
	if code, _ := number(a.reply, 0); code != 1 {
		return driver.ErrLost
	}
	return nil
}

// Check examines the servers by INFO and CONFIG, as far as they are allowed.
func (n *Node) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	if n.closed.Load() {
		return nil, driver.ErrClosed
	}
	var found []driver.Diagnostic
	err := n.cfg.Client.Each(ctx, func(ctx context.Context, s Server) error {
		f, err := n.examine(ctx, s)
		found = append(found, f...)
		return err
	})
	if err != nil {
		return nil, n.explain("", err)
	}
	slices.SortStableFunc(found, func(a, b driver.Diagnostic) int { return int(b.Severity) - int(a.Severity) })
	return found, nil
}

// examine examines one server. An error says that it cannot be reached.
func (n *Node) examine(ctx context.Context, s Server) ([]driver.Diagnostic, error) {
	var found []driver.Diagnostic
	add := func(sev driver.Severity, what, fix string) {
		found = append(found, driver.Diagnostic{Severity: sev, Node: s.Addr(), Summary: what, Remedy: fix})
	}
	var refusal ServerError

	var now int64 // by its clock, in µs
	sent := time.Now()
	reply, err := s.Do(ctx, "TIME")
	switch received := time.Now(); {
	case errors.As(err, &refusal):
		add(driver.SeverityUnsafe, "TIME is refused: "+refusal.Error(), "allow the command TIME: no lock can be taken without it")
	case err != nil:
		return nil, err
	default:
		var ok bool
		if now, ok = micros(reply); !ok {
			return nil, errGarbled
		}
		add(clockFinding(now, sent, received))
	}

	reply, err = s.Do(ctx, "INFO")
	info, ok := reply.(string)
	switch {
	case errors.As(err, &refusal):
		add(driver.SeverityNote, "INFO is refused: version, role and persistence are unknown", "allow the command INFO")
	case err != nil:
		return nil, err
	case ok:
		checkInfo(parseInfo(info), n.cfg.Cluster, add)
	}

	if reply, err := s.Do(ctx, "GET", n.guard.meta); err == nil {
		if meta, ok := reply.(string); ok {
			checkMeta(meta, now, add)
		}
	}

	for _, c := range []struct {
		name  string
		judge func(value string, add addFinding)
	}{
		{"maxmemory-policy", judgePolicy}, {"appendonly", judgeAppendOnly}, {"appendfsync", judgeFsync},
	} {
		reply, err := s.Do(ctx, "CONFIG", "GET", c.name)
		if errors.As(err, &refusal) {
			add(driver.SeverityNote, "CONFIG is refused: "+c.name+" is unknown", "allow the command CONFIG GET, or check it by hand")
			continue
		}
		if err != nil {
			return nil, err
		}
		if value, ok := configValue(reply); ok {
			c.judge(value, add)
		}
	}
	return found, nil
}

type addFinding = func(sev driver.Severity, what, fix string)

// micros reads the reply to TIME.
func micros(reply any) (int64, bool) {
	t, ok := reply.([]any)
	if !ok || len(t) != 2 {
		return 0, false
	}
	s, _ := t[0].(string)
	us, _ := t[1].(string)
	sec, err := strconv.ParseInt(s, 10, 64)
	micro, err2 := strconv.ParseInt(us, 10, 64)
	return sec*1e6 + micro, err == nil && err2 == nil
}

// clockFinding compares the server's clock with ours.
func clockFinding(now int64, sent, received time.Time) (driver.Severity, string, string) {
	middle := sent.Add(received.Sub(sent) / 2)
	off := time.UnixMicro(now).Sub(middle.Round(0)).Round(time.Millisecond)
	what := fmt.Sprintf("its clock is %v from ours, give or take %v", off, received.Sub(sent).Round(time.Microsecond)/2)
	if off.Abs() > time.Second {
		return driver.SeverityWarning, what, "run NTP on both: tokens of different servers are compared by their clocks"
	}
	return driver.SeverityNote, what, ""
}

func parseInfo(info string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

func checkInfo(info map[string]string, cluster bool, add addFinding) {
	version, product := info["redis_version"], "Redis"
	if v := info["valkey_version"]; v != "" {
		version, product = v, "Valkey"
	}
	add(driver.SeverityNote, product+" "+version+", "+info["redis_mode"]+", "+info["role"], "")
	if old(info["redis_version"]) {
		add(driver.SeverityUnsafe, "the server is older than Redis 6.2: SET … GET is missing", "upgrade it")
	}
	if info["role"] == "slave" {
		add(driver.SeverityUnsafe, "the server is a replica", "connect to its primary")
	}
	if info["cluster_enabled"] == "1" && !cluster {
		add(driver.SeverityUnsafe, "the server is a node of a Cluster, and is used as a single instance", "use topology=cluster")
	}
	if info["role"] == "master" && info["connected_slaves"] != "" && info["connected_slaves"] != "0" {
		add(driver.SeverityWarning, "the server has "+info["connected_slaves"]+" replicas: a failover may lose the last locks and counters", "use a quorum (redlock:) where that matters, and check tokens")
	}
	used, _ := strconv.ParseFloat(info["used_memory"], 64)
	if most, _ := strconv.ParseFloat(info["maxmemory"], 64); most > 0 && used > most*3/4 {
		add(driver.SeverityWarning, fmt.Sprintf("%.0f%% of maxmemory is used: locks are refused when it is full", 100*used/most), "raise maxmemory: a lock costs about 150 bytes until its counter ends, some minutes after its last use")
	}
	if info["rdb_last_bgsave_status"] == "err" || info["aof_last_write_status"] == "err" {
		add(driver.SeverityWarning, "the server could not save its data lately", "look at its log and its disk")
	}
}

// old reports whether version is under 6.2.
func old(version string) bool {
	a, rest, _ := strings.Cut(version, ".")
	b, _, _ := strings.Cut(rest, ".")
	major, err := strconv.Atoi(a)
	minor, err2 := strconv.Atoi(b)
	return err == nil && err2 == nil && (major < 6 || major == 6 && minor < 2)
}

// checkMeta says what the restart guard of a quorum, or of a lone instance, has written
// down: see lua/guard.lua.
func checkMeta(meta string, now int64, add addFinding) {
	var layout, till, high, allow, span int64
	var bond, why string
	if n, _ := fmt.Sscan(meta, &layout, &bond, &till, &high, &allow, &span, &why); n < 6 {
		add(driver.SeverityWarning, "what the restart guard wrote down is of another release: "+meta, "use the release that wrote it")
		return
	}
	_, nodes, _ := strings.Cut(bond, "/")
	add(driver.SeverityNote, fmt.Sprintf("restart guard of %v, as one of %s", time.Duration(span)*time.Microsecond, nodes), "")
	if till > now {
		add(driver.SeverityWarning, inQuarantine(why, till, now), "wait, or, if all servers of this lock are new: dlock bootstrap")
	}
}

func configValue(reply any) (string, bool) {
	pair, ok := reply.([]any)
	if !ok || len(pair) != 2 {
		return "", false
	}
	value, ok := pair[1].(string)
	return value, ok
}

func judgePolicy(value string, add addFinding) {
	if value != "noeviction" {
		add(driver.SeverityUnsafe, "maxmemory-policy is "+value+": the server may evict a lock that is held, or its counter", "set maxmemory-policy noeviction")
	}
}

func judgeAppendOnly(value string, add addFinding) {
	if value != "yes" {
		add(driver.SeverityWarning, "appendonly is "+value+": a restart forgets the locks that are held", "set appendonly yes, or let a restart guard keep the server out for a while")
	}
}

func judgeFsync(value string, add addFinding) {
	if value != "always" {
		add(driver.SeverityNote, "appendfsync is "+value+": a crash of the machine forgets the last writes", "set appendfsync always where that matters")
	}
}
