package redlocktest

import (
	"bufio"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// luaBug is planted in a script of the Redis driver while the script is sent to the server.
func luaBug(name, want, rule, old, new string) bug {
	return bug{name: name, want: want, rule: rule, check: func(t *testing.T, only string) error {
		f := &forger{server: redisServer.Addr(), prefix: fmt.Sprintf("forged%d:", forgers.Add(1)), old: old, new: new, shas: map[string]string{}}
		for range 5 { // on a busy machine a lease may end before its renewal, whose script is then not used
			err := Check(Harness{Open: f.open, TTL: 300 * time.Millisecond, Grace: 20 * time.Millisecond, Prefix: f.prefix, Timeout: caseTime(name, 8*time.Second), Short: true, quiet: true, Only: only})
			if old == "" || f.forged.Load() > 0 {
				return err
			}
		}
		t.Errorf("no script has the text %q: the bug was not planted", old)
		return nil
	}}
}

// redisServer runs the scripts while TestPlantedBugs runs.
var redisServer *server.Server

// redisBugs are planted in the scripts.
var redisBugs = []bug{
	luaBug("SET without NX", "basic/held", "exclusion", "v = try('SET', KEYS[1], value, 'PX', px, 'NX', 'GET')", "redis.call('SET', KEYS[1], value, 'PX', px)"),
	luaBug("release does not compare the value", "expiry/stale", "driver.Lease.Release", "(v == me or", "(true or"),
	luaBug("renew does not compare the value", "expiry/stale", "driver.Lease.Renew", "if redis.call('GET', KEYS[1]) ~= ARGV[2] then return {0, now} end", "if not redis.call('GET', KEYS[1]) then return {0, now} end"),
	luaBug("renew takes a free lock", "expiry/renew-never-takes", "driver.Lease.Renew", "if redis.call('GET', KEYS[1]) ~= ARGV[2] then return {0, now} end", "redis.call('SET', KEYS[1], ARGV[2], 'NX')"),
	luaBug("renew does not extend", "expiry/renewal", "rule 1 | exclusion", "redis.call('PEXPIRE', KEYS[1], math.max(px, tonumber(ARGV[6])))", ""),
	luaBug("renew extends by half", "expiry/renew-longer", "driver.HeldError", "redis.call('PEXPIRE', KEYS[1], math.max(px, tonumber(ARGV[6])))", "redis.call('PEXPIRE', KEYS[1], math.floor(px / 2))"),
	luaBug("PX is 25 ms too short", "expiry/retry-after", "driver.HeldError", "GRACE == 0 and ARGV[3] or string.format('%.0f', ARGV[3] + GRACE)\nif x == 0", "string.format('%.0f', ARGV[3] + GRACE - 25)\nif x == 0"),
	luaBug("PX is in whole seconds", "expiry/odd-ttl", "rule 3", "GRACE == 0 and ARGV[3] or string.format('%.0f', ARGV[3] + GRACE)\nif x == 0", "string.format('%.0f', math.max(math.floor((ARGV[3] + GRACE) / 1000) * 1000, 300))\nif x == 0"),
	luaBug("PX is ten times too long", "expiry/retry-after", "driver.HeldError", "GRACE == 0 and ARGV[3] or string.format('%.0f', ARGV[3] + GRACE)\nif x == 0", "string.format('%.0f', (ARGV[3] + GRACE) * 10)\nif x == 0"),
	luaBug("the token does not rise", "node/floor", "rule 8", "if counter >= x then x = counter + 1 end", "if counter >= x then x = counter end"),
	luaBug("the floor is not clamped", "node/floor-clamped", "driver.Request.FenceFloor", "x = x == 0 and now or math.max(math.min(x, now + 500000), now - 2000000, till)", "x = x == 0 and now or x"),
	luaBug("a join is granted below the counter", "node/join-above", "driver.Request", "if counter and counter > x and counter + 2000000 + QUARANTINE >= ARGV[6] + 0 then return {-2, counter, now} end", ""),
	luaBug("a renewal does not raise the counter", "node/raise", "driver.Renewal.MinFence", "math.max(token, tonumber(ARGV[4]))", "token"),
	luaBug("what is left is told in seconds", "verdict/held", "driver.HeldError", "redis.call('PTTL', KEYS[1]), now}", "redis.call('TTL', KEYS[1]), now}"),
}

// soundScripts has no bug.
func soundScripts() bug { return luaBug("", "", "", "", "") }

func startRedis(t *testing.T) {
	redisServer = server.Redis(t)
}

// A forger is a proxy between a client and its server that changes the texts of scripts.
type forger struct {
	server   string
	prefix   string
	old, new string
	forged   atomic.Int64

	mu   sync.Mutex
	shas map[string]string // from the hash of the true text to that of the forged one
}

var forgers atomic.Int64

// forgedBackend is a backend with its own forger.
type forgedBackend struct {
	goredisBackend
	listener net.Listener
}

type goredisBackend interface {
	driver.Backend
	driver.Watcher
	driver.Inspector
}

func (b *forgedBackend) Close() error {
	return errors.Join(b.goredisBackend.Close(), ignoreClosed(b.listener.Close()))
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (f *forger) open() (driver.Backend, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f.serve(c)
		}
	}()
	b, err := goredis.Driver{}.Open(&driver.Config{DSN: "redis://" + l.Addr().String() + "?call_timeout=10s", Prefix: f.prefix})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &forgedBackend{goredisBackend: b.(goredisBackend), listener: l}, nil
}

// serve forwards a connection until either side ends it.
func (f *forger) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	up, err := net.Dial("tcp", f.server)
	if err != nil {
		return
	}
	defer func() { _ = up.Close() }()
	go func() {
		_, _ = io.Copy(client, up)
		_ = client.Close()
	}()
	in, out := bufio.NewReader(client), bufio.NewWriter(up)
	for {
		args, err := readCommand(in)
		if err != nil {
			return
		}
		f.forge(args)
		_, _ = fmt.Fprintf(out, "*%d\r\n", len(args))
		for _, a := range args {
			_, _ = fmt.Fprintf(out, "$%d\r\n%s\r\n", len(a), a)
		}
		if in.Buffered() == 0 && out.Flush() != nil {
			return
		}
	}
}

// forge changes the text of a script in a command, and the hash in later calls.
func (f *forger) forge(args []string) {
	if len(args) < 2 {
		return
	}
	text := len(args) - 1
	switch strings.ToUpper(args[0]) {
	case "EVAL":
		text = 1
	case "SCRIPT":
		if !strings.EqualFold(args[1], "LOAD") {
			return
		}
	case "EVALSHA":
		f.mu.Lock()
		defer f.mu.Unlock()
		if sha, ok := f.shas[args[1]]; ok {
			args[1] = sha
		}
		return
	default:
		return
	}
	forged := args[text]
	if f.old != "" && strings.Contains(forged, f.old) {
		forged = strings.ReplaceAll(forged, f.old, f.new)
		f.forged.Add(1)
	}
	forged = "-- " + f.prefix + "\n" + forged // no text of another bug's is called by its hash
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shas[hash(args[text])] = hash(forged)
	args[text] = forged
}

func hash(text string) string {
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

// readCommand reads one command: an array of strings.
func readCommand(in *bufio.Reader) ([]string, error) {
	n, err := readLength(in, '*')
	if err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		size, err := readLength(in, '$')
		if err != nil {
			return nil, err
		}
		text := make([]byte, size+2)
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, err
		}
		args[i] = string(text[:size])
	}
	return args, nil
}

func readLength(in *bufio.Reader, kind byte) (int, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != kind {
		return 0, fmt.Errorf("a command has %q where %q must be", line[0], kind)
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}
