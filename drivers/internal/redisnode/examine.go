package redisnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/driver/printable"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/memory"
)

const (
	note    = driver.SeverityNote
	warning = driver.SeverityWarning
	danger  = driver.SeverityUnsafe
)

// Check examines the servers with INFO, CONFIG and other commands that they allow. It changes
// only a key of its own, which lives for a millisecond.
func (n *Node) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	if n.closed.Load() {
		return nil, driver.ErrClosed
	}
	e := &examination{n: n}
	err := each(ctx, n.cfg.Client, &n.wg, func(s Server) error {
		e.s, e.Node, e.guarded, e.reported = s, s.Addr(), false, map[string]bool{}
		return e.run(ctx)
	})
	if err != nil {
		return nil, n.explain("", err)
	}
	return e.Result(nil)
}

// An examination examines one server after the other.
type examination struct {
	base.Findings
	n *Node
	s Server

	info     map[string]string
	guarded  bool            // the restart guard has its memory there
	reported map[string]bool // codes of this server's findings
}

// A finding is one of the table: what a fact means, and what to do.
type finding struct {
	found    bool
	code     string
	severity driver.Severity
	measured string
	summary  string
	remedy   string
	command  string
}

func (e *examination) add(rows ...finding) {
	for _, f := range rows {
		if f.found {
			d := e.Add(f.code, f.severity, f.remedy, "%s", f.summary)
			d.Measured, d.Command = f.measured, f.command
			e.reported[f.code] = true
		}
	}
}

// cli returns a command line that runs a command on the server at addr.
func (e *examination) cli(addr string, args ...string) string {
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

var lockedOut = regexp.MustCompile("^(NOAUTH|WRONGPASS|NOPROTO|LOADING)|AUTH.*without any password|invalid password|max number of clients|DB index is out of range")

// ask runs a command. The reply is nil if the server refuses it. An error says that the server cannot be
// reached, or refuses all commands of this client.
func (e *examination) ask(ctx context.Context, args ...string) (any, error) {
	reply, err := e.s.Do(ctx, args...)
	var refusal ServerError
	if errors.As(err, &refusal) && !lockedOut.MatchString(string(refusal)) {
		return nil, nil
	}
	return reply, err
}

// run examines the server. An error says that the server cannot be reached.
func (e *examination) run(ctx context.Context) error {
	sent := time.Now()
	clock, err := e.ask(ctx, "TIME")
	if err != nil {
		return err
	}
	now, err := e.clock(clock, sent)
	if err != nil {
		return err
	}
	info, err := e.ask(ctx, "INFO")
	if err != nil {
		return err
	}
	e.facts(info)
	if err := e.memory(ctx, now); err != nil {
		return err
	}
	if err := e.settings(ctx); err != nil {
		return err
	}
	return e.rights(ctx)
}

// clock compares the server's clock with ours, and measures the round trip. It returns the clock in
// microseconds, or zero if TIME is refused, which is for rights to say.
func (e *examination) clock(reply any, sent time.Time) (int64, error) {
	if reply == nil {
		return 0, nil
	}
	t, ok := reply.([]any)
	s, _ := text(t, 0)
	us, _ := text(t, 1)
	sec, err := strconv.ParseInt(s, 10, 64)
	micro, err2 := strconv.ParseInt(us, 10, 64)
	if !ok || err != nil || err2 != nil {
		return 0, errGarbled
	}
	now := sec*1e6 + micro
	off, margin := base.ClockOffset(time.UnixMicro(now), sent)
	off = off.Round(time.Millisecond)
	trip := (2 * margin).Round(10 * time.Microsecond).String()
	d := finding{true, "clock-offset", note, off.String(), fmt.Sprintf("its clock is %v from ours, give or take half of a round trip", off), "", ""}
	if off.Abs() > time.Second+2*margin {
		d.severity, d.remedy = warning, "run NTP on both: tokens of different servers are compared by their clocks"
	}
	e.add(finding{true, "round-trip", note, trip, "a round trip takes " + trip, "", ""}, d)
	return now, nil
}

// facts judges the reply to INFO.
func (e *examination) facts(reply any) {
	e.info = map[string]string{}
	all, ok := reply.(string)
	if !ok {
		return
	}
	for line := range strings.Lines(all) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			e.info[name] = value
		}
	}
	info, cfg := e.info, &e.n.cfg
	var major, minor int
	_, _ = fmt.Sscanf(info["redis_version"], "%d.%d", &major, &minor)
	topology := "single"
	switch {
	case cfg.Cluster:
		topology = "cluster"
	case cfg.Failover:
		topology = "sentinel"
	}
	number := func(name string) int64 { n, _ := strconv.ParseInt(info[name], 10, 64); return n }
	primary, count := info["role"] == "master", number("connected_slaves")
	e.add(
		finding{info["run_id"] != "", "process", note, info["run_id"], "its process is " + info["run_id"], "", ""},
		finding{true, "topology", note, topology, "used as topology=" + topology, "", ""},
		finding{major > 0 && (major < 6 || major == 6 && minor < 2), "version-old", danger, info["redis_version"], "the server is older than Redis 6.2: SET … GET is missing", "upgrade it", ""},
		finding{info["cluster_enabled"] == "1" && !cfg.Cluster, "cluster-node", danger, "", "the server is a node of a Cluster, and is used as a single instance", "use topology=cluster, or a server outside of the Cluster as a node of a quorum", ""},
		finding{
			info["role"] == "slave", "replica", danger, "role slave", "the server is a replica of " + net.JoinHostPort(info["master_host"], info["master_port"]),
			"connect to its primary, or make it a server of its own", e.cli(e.Node, "REPLICAOF", "NO", "ONE"),
		},
		finding{
			primary && cfg.Failover && !cfg.Cluster && int64(cfg.WaitReplicas) < count, "wait-replicas", warning, strconv.Itoa(cfg.WaitReplicas),
			fmt.Sprintf("wait_replicas is %d, and the server has %d replicas: a failover, a planned one too, may give away locks that are held, above all with a TTL below 5 s", cfg.WaitReplicas, count),
			fmt.Sprintf("set wait_replicas=%d in the URL, and a TTL of 5 s or more; or use a quorum (redlock:)", count), "",
		},
		finding{
			primary && !cfg.Failover && count > 0, "has-replicas", warning, strconv.FormatInt(count, 10),
			fmt.Sprintf("the server has %d replicas: a failover may lose the last locks and counters", count), "let it have none: use a quorum (redlock:) for availability", "",
		},
	)
}

// metaText matches the memory of the restart guard, with the terms, till, high, and why it does
// not vote: see lua/guard.lua.
var metaText = regexp.MustCompile(`^2 [0-9a-f]+/(\S+) (\d+) (\d+) \S+ (\w*)$`)

// memory reports the memory of the restart guard, of a quorum's node or of a lone instance: see
// lua/guard.lua.
func (e *examination) memory(ctx context.Context, now int64) error {
	reply, err := e.ask(ctx, "GET", e.n.guard.meta)
	meta, _ := reply.(string)
	m := metaText.FindStringSubmatch(meta)
	if err != nil || m == nil { // a memory of another release refuses every lock
		return err
	}
	e.guarded = true
	terms, _ := memory.ParseTerms(m[1])
	till, _ := strconv.ParseInt(m[2], 10, 64)
	high, _ := strconv.ParseInt(m[3], 10, 64)
	left, remedy := (time.Duration(till-now) * time.Microsecond).Round(time.Millisecond).String(), "wait: it ends by itself; new servers have no such wait after dlock bootstrap, before their first client"
	if till == memory.Pending {
		left, remedy = "", "start the other nodes, and let a client reach them: the quarantine gets its end when their clocks are known"
	}
	back := (time.Duration(high-now) * time.Microsecond).Round(time.Millisecond)
	e.add(
		finding{till > now && now > 0, "quarantine", warning, left, memory.InQuarantine(m[4], till, now), remedy, ""},
		finding{
			now > 0 && back > max(terms.Allowance, time.Second), "clock-set-back", danger, back.String(),
			fmt.Sprintf("its clock was %v ahead of now when a lock was last granted: it was set back", back), "run NTP on it, with slewing instead of steps", "",
		},
	)
	return nil
}

// settings judges the replies to CONFIG.
func (e *examination) settings(ctx context.Context) error {
	values, unknown := map[string]string{}, []string(nil)
	for _, name := range []string{"maxmemory-policy", "appendonly", "appendfsync"} {
		reply, err := e.ask(ctx, "CONFIG", "GET", name)
		if err != nil {
			return err
		}
		if reply == nil {
			unknown = append(unknown, name)
		}
		values[name], _ = configValue(reply, name)
	}
	policy, aof, fsync, durable := values["maxmemory-policy"], values["appendonly"], values["appendfsync"], e.n.cfg.Durable
	set := func(name, value string) string { return e.cli(e.Node, "CONFIG", "SET", name, value) }
	forgets := aof != "" && (aof != "yes" || fsync != "always")
	e.add(
		finding{
			policy != "" && policy != "noeviction", "maxmemory-policy", danger, policy, "maxmemory-policy is " + policy + ": the server may evict a lock that is held, or its counter",
			"set maxmemory-policy noeviction", set("maxmemory-policy", "noeviction"),
		},
		finding{
			durable && forgets, "durable-not-persistent", danger, "appendonly " + aof + ", appendfsync " + fsync,
			"the URL says durable=true, and a restart forgets what the server acknowledged: appendonly is " + aof + ", appendfsync " + fsync,
			"set appendonly yes and appendfsync always, or leave durable out", set("appendonly", "yes") + " && " + set("appendfsync", "always"),
		},
		finding{
			!durable && aof == "no" && !e.guarded, "appendonly", warning, aof, "appendonly is " + aof + ": a restart forgets the locks that are held",
			"set appendonly yes, or let a restart guard keep the server out for a while", set("appendonly", "yes"),
		},
		finding{len(unknown) > 0, "unknown-setting", note, "", "CONFIG is refused: the values of " + strings.Join(unknown, ", ") + " are unknown", "allow the command CONFIG GET, or look at them by hand", ""},
	)
	return nil
}

// A right is a command that scripts and clients use, with harmless arguments; %k stands for a
// key and %c for a channel of our own.
type right struct {
	command string
	without string // the drawback without the right; empty: no lock can be taken
}

const noQueue = "waiters poll, and shared mode is refused"

var rights = []right{
	{command: "TIME"}, {command: "SET %k x PX 1"}, {command: "GET %k"}, {command: "PTTL %k"}, {command: "PEXPIRE %k 1"}, {command: "DEL %k"},
	{command: "EVAL return{1} 1 %k"}, {command: "EVALSHA 0000000000000000000000000000000000000000 1 %k"},
	{"INFO server", "restarts of the server are not noticed"},
	{"GETRANGE %k 0 1", "who holds a lock is unknown"},
	{"MGET %k", "calls that come together take longer"}, {"EXISTS %k", "calls that come together take longer"},
	{"ZADD %k 1 x", noQueue}, {"ZCOUNT %k 0 1", "waiters poll"}, {"ZRANGE %k 0 0", noQueue}, {"ZREM %k x", noQueue},
	{"ZPOPMIN %k", "waiters poll"}, {"PUBLISH %c x", "waiters learn of no release, and ask when the TTL ends"},
}

// rights tries every needed command, and reports each that the user may not run.
func (e *examination) rights(ctx context.Context) error {
	key, channel := e.n.names.Counter("check"), e.n.waiterChannels+"check"
	defer e.s.Do(ctx, "DEL", key) //nolint:errcheck // it ends with its TTL, too
	for _, r := range rights {
		args := strings.Fields(strings.NewReplacer("%k", key, "%c", channel).Replace(r.command))
		_, err := e.s.Do(ctx, args...)
		var refusal ServerError
		if isCode(err, "NOPERM") {
			e.refused(ctx, r, args[0], err.Error())
		} else if err != nil && !errors.As(err, &refusal) {
			return err
		}
	}
	return nil
}

// refused adds a finding of a refusal about rights. One tells of all keys, and one of all channels.
func (e *examination) refused(ctx context.Context, r right, command, why string) {
	reply, _ := e.ask(ctx, "ACL", "WHOAMI")
	user, known := reply.(string)
	if !known {
		user = "USER"
	}
	d := finding{true, "acl-command", warning, command, "the user may not run " + command, "allow it", ""}
	rule := "+" + strings.ToLower(command)
	switch {
	case strings.Contains(why, "access") && strings.Contains(why, "channel"):
		d.code, d.summary, rule = "acl-channel", "the user may not use the channels of the locks", "&"+e.n.cfg.Prefix+"*"
	case strings.Contains(why, "access"):
		d.code, d.summary, rule = "acl-key", "the user may not use the keys of the locks", "~"+e.n.cfg.Prefix+"*"
	}
	if d.code != "acl-command" && e.reported[d.code] {
		return
	}
	if r.without == "" {
		d.severity, r.without = danger, "no lock can be taken"
	}
	d.summary, d.command = d.summary+": "+r.without, e.cli(e.Node, "ACL", "SETUSER", user, rule)
	e.add(d)
}
