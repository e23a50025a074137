package redisnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/memory"
)

// Check examines the servers with INFO, CONFIG and other commands that they allow. It changes
// only a key of its own, which lives for a millisecond.
func (n *Node) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	if n.closed.Load() {
		return nil, driver.ErrClosed
	}
	var found []driver.Diagnostic
	err := each(ctx, n.cfg.Client, &n.wg, func(s Server) error {
		e := &examination{n: n, s: s}
		err := e.run(ctx)
		found = append(found, e.found...)
		return err
	})
	if err != nil {
		return nil, n.explain("", err)
	}
	slices.SortStableFunc(found, func(a, b driver.Diagnostic) int { return int(b.Severity) - int(a.Severity) })
	return found, nil
}

// An examination examines one server.
type examination struct {
	n     *Node
	s     Server
	info  map[string]string
	found []driver.Diagnostic

	unknown []string // settings that could not be read
}

func (e *examination) add(d driver.Diagnostic) {
	d.Node = e.s.Addr()
	e.found = append(e.found, d)
}

// cli returns a command line that runs a command on the server.
func (e *examination) cli(args ...string) string {
	return e.cliAt(e.s.Addr(), args...)
}

func (e *examination) cliAt(addr string, args ...string) string {
	tool := "redis-cli"
	if e.info["valkey_version"] != "" {
		tool = "valkey-cli"
	}
	line := []string{tool}
	host, socket := addr, ""
	if u, err := url.Parse(addr); err == nil && u.Scheme != "" {
		host, socket = u.Host, u.Path
	}
	if name, port, err := net.SplitHostPort(host); err == nil {
		line = append(line, "-h", name, "-p", port)
	} else {
		line = append(line, "-s", socket)
	}
	if strings.HasPrefix(e.n.cfg.Addr, "rediss:") || strings.HasPrefix(e.n.cfg.Addr, "valkeys:") {
		line = append(line, "--tls")
	}
	return printable.CommandLine(append(line, args...)...)
}

// ask runs a command. ok is false if the server refuses it; that is noted unless the answer is
// optional. An error says that the server cannot be reached, or refuses all commands.
func (e *examination) ask(ctx context.Context, args ...string) (reply any, ok bool, err error) {
	return e.judge(e.s.Do(ctx, args...))
}

func (e *examination) judge(reply any, err error) (any, bool, error) {
	var refusal ServerError
	if errors.As(err, &refusal) && !refusesAll(refusal) {
		return nil, false, nil
	}
	return reply, err == nil, err
}

var lockedOut = regexp.MustCompile("AUTH.*without any password|invalid password|max number of clients|DB index is out of range")

// refusesAll reports whether a refusal is not of one command, but of this client.
func refusesAll(e ServerError) bool {
	switch e.Code() {
	case "NOAUTH", "WRONGPASS", "NOPROTO", "LOADING":
		return true
	}
	return lockedOut.MatchString(string(e))
}

// run examines the server. An error says that the server cannot be reached.
func (e *examination) run(ctx context.Context) error {
	now, err := e.time(ctx)
	if err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{
		e.facts,
		func(ctx context.Context) error { return e.memory(ctx, now) },
		e.settings, e.rights, e.watchers, e.slow,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// time compares the server's clock with ours, and measures the round trip. It returns the clock
// in microseconds, or zero if TIME is refused.
func (e *examination) time(ctx context.Context) (int64, error) {
	sent := time.Now()
	reply, ok, err := e.ask(ctx, "TIME")
	if err != nil || !ok {
		return 0, err // rights names the refused command
	}
	received := time.Now()
	now, ok := micros(reply)
	if !ok {
		return 0, errGarbled
	}
	trip := received.Sub(sent)
	off := time.UnixMicro(now).Sub(sent.Add(trip / 2).Round(0)).Round(time.Millisecond)
	e.add(driver.Diagnostic{Code: "round-trip", Summary: "a round trip takes " + short(trip), Measured: short(trip)})
	d := driver.Diagnostic{Code: "clock-offset", Summary: fmt.Sprintf("its clock is %v from ours, give or take %s", off, short(trip/2)), Measured: off.String()}
	if off.Abs() > time.Second+trip {
		d.Severity, d.Remedy = driver.SeverityWarning, "run NTP on both: tokens of different servers are compared by their clocks"
	}
	e.add(d)
	return now, nil
}

// short returns a duration rounded for people.
func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

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

func parseInfo(info string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// facts judges the reply to INFO.
func (e *examination) facts(ctx context.Context) error {
	reply, ok, err := e.ask(ctx, "INFO")
	if err != nil {
		return err
	}
	text, _ := reply.(string)
	e.info = parseInfo(text)
	if !ok {
		return nil
	}
	e.identity()
	e.replication()
	e.room()
	if e.info["rdb_last_bgsave_status"] == "err" || e.info["aof_last_write_status"] == "err" {
		e.add(driver.Diagnostic{Code: "save-failed", Severity: driver.SeverityWarning, Summary: "the server could not save its data lately", Remedy: "look at its log and its disk"})
	}
	return nil
}

func (e *examination) identity() {
	info := e.info
	version, product := info["redis_version"], "Redis"
	if v := info["valkey_version"]; v != "" {
		version, product = v, "Valkey"
	}
	e.add(driver.Diagnostic{Code: "version", Summary: product + " " + version + ", " + info["redis_mode"] + ", " + info["role"], Measured: product + " " + version})
	if id := info["run_id"]; id != "" {
		e.add(driver.Diagnostic{Code: "process", Summary: "its process is " + id, Measured: id})
	}
	topology := "single"
	switch {
	case e.n.cfg.Cluster:
		topology = "cluster"
	case e.n.cfg.Failover:
		topology = "sentinel"
	}
	e.add(driver.Diagnostic{Code: "topology", Summary: "used as topology=" + topology, Measured: topology})
	if old(info["redis_version"]) {
		e.add(driver.Diagnostic{Code: "version-old", Severity: driver.SeverityUnsafe, Summary: "the server is older than Redis 6.2: SET … GET is missing", Measured: version, Remedy: "upgrade it"})
	}
	if info["cluster_enabled"] == "1" && !e.n.cfg.Cluster {
		e.add(driver.Diagnostic{Code: "cluster-node", Severity: driver.SeverityUnsafe, Summary: "the server is a node of a Cluster, and is used as a single instance", Remedy: "use topology=cluster, or a server outside of the Cluster as a node of a quorum"})
	}
}

func (e *examination) replication() {
	info := e.info
	if info["role"] == "slave" {
		e.add(driver.Diagnostic{
			Code: "replica", Severity: driver.SeverityUnsafe, Summary: "the server is a replica of " + net.JoinHostPort(info["master_host"], info["master_port"]), Measured: "role slave",
			Remedy: "connect to its primary, or make it a server of its own", Command: e.cli("REPLICAOF", "NO", "ONE"),
		})
	}
	count := info["connected_slaves"]
	replicas, _ := strconv.Atoi(count)
	if info["role"] != "master" || replicas == 0 {
		return
	}
	if wait := e.n.cfg.WaitReplicas; e.n.cfg.Failover && !e.n.cfg.Cluster && wait < replicas {
		e.add(driver.Diagnostic{
			Code: "wait-replicas", Severity: driver.SeverityWarning, Measured: strconv.Itoa(wait),
			Summary: fmt.Sprintf("wait_replicas is %d, and the server has %s replicas: a failover, a planned one too, may give away locks that are held, above all with a TTL below 5 s", wait, count),
			Remedy:  fmt.Sprintf("set wait_replicas=%d in the URL, and a TTL of 5 s or more; or use a quorum (redlock:)", replicas),
		})
	}
	if !e.n.cfg.Failover {
		d := driver.Diagnostic{
			Code: "has-replicas", Severity: driver.SeverityWarning, Measured: count,
			Summary: "the server has " + count + " replicas: a failover may lose the last locks and counters",
			Remedy:  "let it have none: use a quorum (redlock:) for availability",
		}
		var commands []string
		for i := 0; info["slave"+strconv.Itoa(i)] != ""; i++ {
			f := map[string]string{}
			for pair := range strings.SplitSeq(info["slave"+strconv.Itoa(i)], ",") {
				name, value, _ := strings.Cut(pair, "=")
				f[name] = value
			}
			commands = append(commands, e.cliAt(net.JoinHostPort(f["ip"], f["port"]), "REPLICAOF", "NO", "ONE"))
		}
		d.Command = strings.Join(commands, " && ")
		e.add(d)
	}
}

// perKey is the memory of a locked key in bytes, until its counter expires.
const perKey = 150

// room compares the free memory with the memory that counters may need: at most as much again
// as the expiring keys of this database have.
func (e *examination) room() {
	used, _ := strconv.ParseInt(e.info["used_memory"], 10, 64)
	most, _ := strconv.ParseInt(e.info["maxmemory"], 10, 64)
	if most == 0 {
		return
	}
	need := int64(1 << 20)
	for pair := range strings.SplitSeq(e.info["db"+strconv.Itoa(e.n.cfg.DB)], ",") {
		if count, ok := strings.CutPrefix(pair, "expires="); ok {
			keys, _ := strconv.ParseInt(count, 10, 64)
			need += keys * perKey
		}
	}
	if most-used >= need && used <= most/4*3 {
		return
	}
	e.add(driver.Diagnostic{
		Code: "memory-low", Severity: driver.SeverityWarning, Measured: fmt.Sprintf("%d of %d bytes used", used, most),
		Summary: fmt.Sprintf("%d%% of maxmemory is used, and locks are refused when it is full: counters may need %d bytes more", 100*used/most, need),
		Remedy:  "raise maxmemory: a lock costs about 150 bytes until its counter ends, some minutes after its last use",
		Command: e.cli("CONFIG", "SET", "maxmemory", strconv.FormatInt(2*(used+need), 10)),
	})
}

// old reports whether version is below 6.2.
func old(version string) bool {
	a, rest, _ := strings.Cut(version, ".")
	b, _, _ := strings.Cut(rest, ".")
	major, err := strconv.Atoi(a)
	minor, err2 := strconv.Atoi(b)
	return err == nil && err2 == nil && (major < 6 || major == 6 && minor < 2)
}

// metaText matches the memory of the restart guard, with the terms, till, high, and why it does
// not vote: see lua/guard.lua.
var metaText = regexp.MustCompile(`^2 [0-9a-f]+/(\S+) (\d+) (\d+) \S+ (\w*)$`)

// memory reports the memory of the restart guard, of a quorum's node or of a lone instance: see
// lua/guard.lua.
func (e *examination) memory(ctx context.Context, now int64) error {
	reply, err := e.s.Do(ctx, "GET", e.n.guard.meta)
	if isCode(err, "WRONGTYPE") {
		e.add(driver.Diagnostic{Code: "guard-layout", Severity: driver.SeverityWarning, Summary: fmt.Sprintf("the key %q holds something that is not the restart guard's memory", e.n.guard.meta), Remedy: "remove it, or use another prefix"})
		return nil
	}
	if _, _, err := e.judge(reply, err); err != nil {
		return err
	}
	meta, ok := reply.(string)
	if !ok {
		return nil
	}
	m := metaText.FindStringSubmatch(meta)
	if m == nil {
		e.add(driver.Diagnostic{Code: "guard-layout", Severity: driver.SeverityWarning, Summary: "the restart guard's memory was written by another release: " + meta, Remedy: "use the release that wrote it"})
		return nil
	}
	terms, _ := memory.ParseTerms(m[1])
	till, _ := strconv.ParseInt(m[2], 10, 64)
	high, _ := strconv.ParseInt(m[3], 10, 64)
	why := m[4]
	e.add(driver.Diagnostic{Code: "restart-guard", Summary: fmt.Sprintf("restart guard of %v, as one of %d", terms.Guard, terms.N), Measured: terms.Guard.String()})
	if till > now && now > 0 {
		d := driver.Diagnostic{
			Code: "quarantine", Severity: driver.SeverityWarning, Summary: memory.InQuarantine(why, till, now), Measured: quarantined(till, now),
			Remedy: "wait: it ends by itself; new servers have no such wait after dlock bootstrap, before their first client",
		}
		if till == memory.Pending {
			d.Remedy = "start the other nodes, and let a client reach them: the quarantine gets its end when their clocks are known"
		}
		e.add(d)
	}
	if back := time.Duration(high-now) * time.Microsecond; now > 0 && back > max(terms.Allowance, time.Second) {
		e.add(driver.Diagnostic{
			Code: "clock-set-back", Severity: driver.SeverityUnsafe, Summary: fmt.Sprintf("its clock was %v ahead of now when a lock was last granted: it was set back", back.Round(time.Millisecond)), Measured: back.Round(time.Millisecond).String(),
			Remedy: "run NTP on it, with slewing instead of steps",
		})
	}
	return nil
}

// quarantined says for how much longer a server does not vote; it is empty if that is unknown yet.
func quarantined(till, now int64) string {
	if till == memory.Pending {
		return ""
	}
	return (time.Duration(till-now) * time.Microsecond).Round(time.Millisecond).String()
}

// config returns a setting, or "" if it cannot be read.
func (e *examination) config(ctx context.Context, name string) (string, error) {
	reply, ok, err := e.ask(ctx, "CONFIG", "GET", name)
	if err != nil {
		return "", err
	}
	value, _ := configValue(reply)
	if !ok {
		e.unknown = append(e.unknown, name)
	}
	return value, nil
}

// settings judges the replies to CONFIG.
func (e *examination) settings(ctx context.Context) error {
	values := map[string]string{}
	for _, name := range []string{"maxmemory-policy", "appendonly", "appendfsync"} {
		v, err := e.config(ctx, name)
		if err != nil {
			return err
		}
		values[name] = v
	}
	if v := values["maxmemory-policy"]; v != "" && v != "noeviction" {
		e.add(driver.Diagnostic{
			Code: "maxmemory-policy", Severity: driver.SeverityUnsafe, Summary: "maxmemory-policy is " + v + ": the server may evict a lock that is held, or its counter", Measured: v,
			Remedy: "set maxmemory-policy noeviction", Command: e.cli("CONFIG", "SET", "maxmemory-policy", "noeviction"),
		})
	}
	e.persistence(values["appendonly"], values["appendfsync"])
	if len(e.unknown) > 0 {
		e.add(driver.Diagnostic{Code: "unknown-setting", Summary: "CONFIG is refused: the values of " + strings.Join(e.unknown, ", ") + " are unknown", Remedy: "allow the command CONFIG GET, or look at them by hand"})
	}
	return nil
}

func (e *examination) persistence(appendOnly, fsync string) {
	aof, always := e.cli("CONFIG", "SET", "appendonly", "yes"), e.cli("CONFIG", "SET", "appendfsync", "always")
	switch {
	case appendOnly == "":
	case e.n.cfg.Durable && (appendOnly != "yes" || fsync != "always"):
		e.add(driver.Diagnostic{
			Code: "durable-not-persistent", Severity: driver.SeverityUnsafe, Measured: "appendonly " + appendOnly + ", appendfsync " + fsync,
			Summary: "the URL says durable=true, and a restart forgets what the server acknowledged: appendonly is " + appendOnly + ", appendfsync " + fsync,
			Remedy:  "set appendonly yes and appendfsync always, or leave durable out", Command: aof + " && " + always,
		})
	case appendOnly != "yes":
		d := driver.Diagnostic{Code: "appendonly", Severity: driver.SeverityWarning, Summary: "appendonly is " + appendOnly + ": a restart forgets the locks that are held", Measured: appendOnly, Remedy: "set appendonly yes, or let a restart guard keep the server out for a while", Command: aof}
		if slices.ContainsFunc(e.found, func(d driver.Diagnostic) bool { return d.Code == "restart-guard" }) {
			d.Severity, d.Remedy, d.Command = driver.SeverityNote, "", ""
			d.Summary = "appendonly is " + appendOnly + ": after a restart the restart guard keeps the server out for a while"
		}
		e.add(d)
	case fsync != "always":
		e.add(driver.Diagnostic{Code: "appendfsync", Summary: "appendfsync is " + fsync + ": a crash of the machine forgets the last writes", Measured: fsync, Remedy: "set appendfsync always where that matters", Command: always})
	}
}

// A right is a command that scripts and clients use, with harmless arguments; %k stands for a
// key and %c for a channel of our own.
type right struct {
	command string
	without string // the drawback without the right; empty: no lock can be taken
}

var rights = []right{
	{command: "TIME"}, {command: "SET %k x PX 1"}, {command: "GET %k"}, {command: "PTTL %k"}, {command: "PEXPIRE %k 1"}, {command: "DEL %k"},
	{command: "EVAL return{1} 1 %k"}, {command: "EVALSHA 0000000000000000000000000000000000000000 1 %k"},
	{"INFO server", "restarts of the server are not noticed"},
	{"GETRANGE %k 0 1", "who holds a lock is unknown"},
	{"MGET %k", "calls that come together take longer"}, {"EXISTS %k", "calls that come together take longer"},
	{"ZADD %k 1 x", "waiters poll"}, {"ZCOUNT %k 0 1", "waiters poll"}, {"ZRANGE %k 0 0", "waiters poll"},
	{"ZREM %k x", "waiters poll"}, {"ZPOPMIN %k", "waiters poll"}, {"PUBLISH %c x", "waiters poll"},
}

// named finds the user in a refusal of a server that names it.
var named = regexp.MustCompile(`^NOPERM User (\S+) has no permissions`)

// rights tries every needed command, and reports each that the user may not run.
func (e *examination) rights(ctx context.Context) error {
	key, channel := e.n.names.Counter("check"), e.n.names.Channel("check")
	defer e.s.Do(ctx, "DEL", key) //nolint:errcheck // it ends with its TTL, too
	for _, r := range rights {
		args := strings.Fields(strings.NewReplacer("%k", key, "%c", channel).Replace(r.command))
		_, err := e.s.Do(ctx, args...)
		var refusal ServerError
		if errors.As(err, &refusal) {
			e.refused(ctx, r, args[0], string(refusal))
		} else if err != nil {
			return err
		}
	}
	return nil
}

// refused adds a finding if a refusal is about rights.
func (e *examination) refused(ctx context.Context, r right, command, why string) {
	if !isCode(ServerError(why), "NOPERM") {
		return
	}
	user := "USER"
	if m := named.FindStringSubmatch(why); m != nil {
		user = m[1]
	} else if reply, _, err := e.ask(ctx, "ACL", "WHOAMI"); err == nil && reply != nil {
		user, _ = reply.(string)
	}
	d := driver.Diagnostic{Code: "acl-command", Severity: driver.SeverityWarning, Measured: command, Summary: "the user may not run " + command, Remedy: "allow it"}
	rule := "+" + strings.ToLower(command)
	switch {
	case strings.Contains(why, "access") && strings.Contains(why, "channel"):
		d.Code, d.Summary, rule = "acl-channel", "the user may not use the channels of the locks", "&"+e.n.cfg.Prefix+"*"
	case strings.Contains(why, "access"):
		d.Code, d.Summary, rule = "acl-key", "the user may not use the keys of the locks", "~"+e.n.cfg.Prefix+"*"
	}
	if slices.ContainsFunc(e.found, func(f driver.Diagnostic) bool { return f.Code == d.Code && f.Code != "acl-command" }) {
		return // already reported
	}
	if r.without == "" {
		d.Severity = driver.SeverityUnsafe
		r.without = "no lock can be taken"
	}
	d.Summary += ": " + r.without
	d.Command = e.cli("ACL", "SETUSER", user, rule)
	e.add(d)
}

// watchers finds a Sentinel among the clients of a server that is used as a single server.
func (e *examination) watchers(ctx context.Context) error {
	if e.n.cfg.Failover {
		return nil
	}
	reply, _, err := e.ask(ctx, "CLIENT", "LIST")
	if err != nil {
		return err
	}
	if list, _ := reply.(string); strings.Contains(list, "name=sentinel-") {
		e.add(driver.Diagnostic{Code: "sentinel-watched", Severity: driver.SeverityWarning, Summary: "a Sentinel watches the server, and may put a replica in its place that lacks the last locks", Remedy: "let no Sentinel watch a node of a quorum; use topology=sentinel where a lone server fails over"})
	}
	return nil
}

// slow looks for our scripts in the slow log.
func (e *examination) slow(ctx context.Context) error {
	reply, _, err := e.ask(ctx, "SLOWLOG", "GET", "128")
	if err != nil {
		return err
	}
	entries, _ := reply.([]any)
	count, slowest := 0, int64(0)
	for _, entry := range entries {
		fields, _ := entry.([]any)
		if len(fields) < 4 {
			continue
		}
		args, _ := fields[3].([]any)
		took, _ := fields[2].(int64)
		if e.ours(args) {
			count++
			slowest = max(slowest, took)
		}
	}
	if count > 0 {
		most := (time.Duration(slowest) * time.Microsecond).Round(10 * time.Microsecond)
		e.add(driver.Diagnostic{
			Code: "slow-scripts", Severity: driver.SeverityWarning, Summary: fmt.Sprintf("%d calls of our scripts are in the slow log, and took up to %v", count, most), Measured: most.String(),
			Remedy:  "look for what slows the server down (swap, other commands, a busy processor), and then empty the slow log",
			Command: e.cli("SLOWLOG", "RESET"),
		})
	}
	return nil
}

// ours reports whether a command calls one of our scripts: such a call names a key beside a
// lock.
func (e *examination) ours(args []any) bool {
	name, _ := args[0].(string)
	if !strings.HasPrefix(strings.ToUpper(name), "EVAL") {
		return false
	}
	return slices.ContainsFunc(args[1:], func(a any) bool {
		text, _ := a.(string)
		return strings.HasPrefix(text, e.n.cfg.Prefix+names.Layout)
	})
}
