package everything_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/cli"
	_ "github.com/redlock-go/redlock/drivers/everything"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// asCommand in the environment makes this binary the command dlock.
const asCommand = "REDLOCK_TEST_AS_DLOCK"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// backends are URLs, one for each kind of system that has a driver.
func backends(t *testing.T) map[string]string {
	urls := map[string]string{
		"file":    "file://" + filepath.ToSlash(t.TempDir()),
		"sqlite":  "sqlite://" + filepath.ToSlash(t.TempDir()) + "/locks.db?setup=true",
		"redis":   server.Redis(t).URL(),
		"mariadb": server.MariaDB(t).URL() + "?setup=true",
	}
	if testing.Short() {
		return urls
	}
	nodes := make([]string, 3)
	for i := range nodes {
		nodes[i] = server.Redis(t).URL()
	}
	pg := server.Postgres(t)
	urls["quorum"] = "redlock:" + strings.Join(nodes, ",") + ",bootstrap=true"
	urls["postgres"] = pg.URL()
	urls["zookeeper"] = "zk://" + strings.Join(server.ZooKeeper(t, 1).Addrs(), ",")
	urls["etcd"] = "etcd://" + strings.Join(server.Etcd(t, 1).Addrs(), ",")
	urls["nats"] = "nats://" + strings.Join(server.NATS(t, 1).Addrs(), ",")
	if server.HasConsul() {
		urls["consul"] = "consul://" + strings.Join(server.Consul(t, 1).Addrs(), ",")
	}
	urls["pgtable"] = strings.Replace(server.PgBouncer(t, pg, "transaction").URL(), "postgres://", "pgtable://", 1) + "&setup=true"
	return urls
}

// One program does the same job with every backend, which only the URL selects. On each backend
// it runs alone. Tokens rise over a change of the backend, so that a store that refuses old
// tokens accepts the new ones.
func TestOneProgramUnderEveryURL(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the job is a shell script")
	}
	work := t.TempDir()
	count, tokens := filepath.Join(work, "count"), filepath.Join(work, "tokens")
	if err := os.WriteFile(count, []byte("0"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The job reads a number and writes it back later: two jobs at a time would lose a count.
	const job = `n=$(cat "$1"); echo "$DLOCK_FENCE" >>"$2"; echo $((n + 1)) >"$1"`
	run := func(url string) error {
		cmd := exec.Command(os.Args[0], "run", "--wait", "60s", "--ttl", "30s", "the job", "--", "sh", "-c", job, "sh", count, tokens)
		if strings.HasPrefix(url, "file:") { // whose locks have no TTL
			cmd.Args = append(cmd.Args[:4:4], cmd.Args[6:]...)
		}
		cmd.Env = append(os.Environ(), asCommand+"=1", "DLOCK_URL="+url)
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%w: %s", err, said.String())
		}
		return nil
	}
	const each = 4
	urls := backends(t)
	for name, url := range urls { // in any order
		var wg sync.WaitGroup
		for range each {
			wg.Go(func() {
				if err := run(url); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		wg.Wait()
		// A token may be a second ahead of its server's clock; the next backend begins after it.
		if ahead := time.Until(time.UnixMicro(int64(rising(t, tokens)))); ahead > time.Second {
			t.Errorf("%s: the last token is %v ahead of the clock", name, ahead)
		} else {
			time.Sleep(ahead)
		}
	}
	done, err := os.ReadFile(count)
	if want := fmt.Sprint(each * len(urls)); err != nil || strings.TrimSpace(string(done)) != want {
		t.Errorf("the job was done %s times of %s (%v)", bytes.TrimSpace(done), want, err)
	}
	var wg sync.WaitGroup
	for name, url := range urls {
		wg.Go(func() {
			if err := slots(t, url); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	wg.Wait()
}

// TestTheCommandListsEveryDriver: with what it can do, and the form of its URL.
func TestTheCommandListsEveryDriver(t *testing.T) {
	var out, said bytes.Buffer
	if code := cli.Main([]string{"dlock", "drivers"}, strings.NewReader(""), &out, &said); code != 0 {
		t.Fatalf("exit code %d: %s", code, said.String())
	}
	listed := map[string]string{}
	for line := range strings.Lines(out.String()) {
		if name, rest, ok := strings.Cut(line, " "); ok {
			listed[name] = rest
		}
	}
	for name, features := range map[string]string{
		"memory": "shared", "file": "session", "redis": "node", "rediss": "node", "valkey": "node", "valkeys": "node",
		"redlock": "fencing", "postgres": "session", "etcd": "queueing", "etcds": "queueing", "zk": "queueing", "zks": "queueing",
		"nats": "queueing", "tls": "queueing", "consul": "queueing", "consuls": "queueing",
		"mysql": "keep", "mariadb": "keep", "pgtable": "keep", "sqlite": "keep",
	} {
		if !strings.Contains(listed[name], features) || !strings.Contains(listed[name], name+":") {
			t.Errorf("%s is listed as %q", name, listed[name])
		}
	}
}

// slots runs a job five times in two slots. Each copy takes the folder of its slot for itself,
// and holds on until both slots have been used at the same time.
func slots(t *testing.T, url string) error {
	const job = `cd "$1"
		mkdir slot-$DLOCK_SLOT || echo "slot $DLOCK_SLOT is taken" >>wrong
		[ $(ls -d slot-* | wc -l) -lt 2 ] || touch both
		while [ ! -e both ]; do sleep 0.05; done
		[ $(ls -d slot-* | wc -l) -le 2 ] || echo "more than two" >>wrong
		rmdir slot-$DLOCK_SLOT`
	work := t.TempDir()
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for range 5 {
		all.Go(func() {
			cmd := exec.Command(os.Args[0], "run", "--slots", "2", "--wait", "60s", "--ttl", "30s", "slots", "--", "sh", "-c", job, "sh", work)
			if strings.HasPrefix(url, "file:") { // whose locks have no TTL
				cmd.Args = append(cmd.Args[:6:6], cmd.Args[8:]...)
			}
			cmd.Env = append(os.Environ(), asCommand+"=1", "DLOCK_URL="+url)
			if said, err := cmd.CombinedOutput(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = fmt.Errorf("%w: %s", err, said)
			}
		})
	}
	all.Wait()
	if wrong, err := os.ReadFile(filepath.Join(work, "wrong")); err == nil {
		failed = fmt.Errorf("slots were shared: %s", wrong)
	}
	return failed
}

// rising asserts that each token in a file is larger than the one before.
func rising(t *testing.T, file string) (last uint64) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		token, err := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
		if err != nil {
			t.Fatalf("a token is none: %q", line)
		}
		if token <= last {
			t.Errorf("token %d after %d", token, last)
		}
		last = token
	}
	return last
}

// A change from one place of a server to another is none from a backend to itself.
func TestBothOfTwoPlacesOfOneServer(t *testing.T) {
	for _, urls := range []string{
		"mysql://u@h/db?table=a mysql://u@h/db?table=b",
		"pgtable://h/db?table=a pgtable://h/db",
		"sqlite:///tmp/locks.db?table=a sqlite:///tmp/locks.db?table=b",
		"consul://h?dc=a consul://h?dc=b",
		"consul://h/a consul://h/b",
		"nats://h/a nats://h/b",
		"redis://h/1 redis://h/2",
		"zk://h/a zk://h/b",
	} {
		c, err := dlock.OpenURL("both:"+urls, dlock.WithLogger(nil))
		if err != nil {
			t.Error(err)
			continue
		}
		_ = c.Close()
	}
}
