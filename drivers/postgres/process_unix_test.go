//go:build unix

package postgres_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
)

const (
	helperURL  = "REDLOCK_POSTGRES_HOLDER_URL"
	longTTL    = time.Hour       // of a holder whose lock comes free for another reason than its end
	checkEvery = 2 * time.Second // the server looks for the client of a running statement
)

// TestMain makes the test's binary a process that holds a lock and renews it, or one that
// contends for it.
func TestMain(m *testing.M) {
	redlocktest.ServeClient(func(url string) (driver.Backend, error) { return open(url) })
	if url := os.Getenv(contenderURL); url != "" {
		if err := contender(url, os.Getenv(contenderURL+"_KIND")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if url := os.Getenv(helperURL); url != "" {
		if os.Getenv(helperURL+"_MANY") != "" {
			sessionHolder(url)
			return
		}
		ttl, err := time.ParseDuration(os.Getenv(helperURL + "_TTL"))
		if err != nil {
			panic(err)
		}
		holder(url, os.Getenv(helperURL+"_WAIT"), ttl)
		return
	}
	os.Exit(runTests(m))
}

func holder(url, waitFor string, ttl time.Duration) {
	b, err := open(url)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	l, err := b.Acquire(context.Background(), request("k", ttl))
	for tries := 0; err != nil && tries < 10; tries++ { // so slow a machine that the grant was over
		l, err = b.Acquire(context.Background(), request("k", ttl))
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(l.Grant().Fence)
	if waitFor != "" { // in the middle of a statement
		go func() {
			r := request(waitFor, ttl)
			r.Wait = true
			_, _ = b.Acquire(context.Background(), r)
		}()
	}
	for range time.Tick(ttl / 4) {
		if _, err := l.Renew(context.Background(), &driver.Renewal{TTL: ttl}); err != nil {
			os.Exit(1)
		}
	}
}

// startHolder starts such a process and returns it with its token.
func startHolder(t *testing.T, url, waitFor string, ttl time.Duration) (*os.Process, uint64) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperURL+"="+url, helperURL+"_WAIT="+waitFor, helperURL+"_TTL="+ttl.String())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, _ := bufio.NewReader(out).ReadString('\n')
	fence, err := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
	if err != nil {
		t.Fatalf("the holder says %q", line)
	}
	return cmd.Process, fence
}

// next takes the key when it comes free, and returns how long that took.
func next(t *testing.T, b driver.Backend, after uint64) time.Duration {
	t.Helper()
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l, err := awaited(ctx, b, request("k", 10*time.Second))
	if err != nil {
		t.Fatalf("the lock did not come free: %v", err)
	}
	took := time.Since(start)
	if f := l.Grant().Fence; f <= after {
		t.Errorf("token %d after %d", f, after)
	}
	_ = l.Release(context.Background())
	return took
}

const (
	pausedSessions = 25
	pausedTTL      = 500 * time.Millisecond // a class, so that the server keeps it no longer than it must
)

// sessionHolder is a process that holds one lock per session, and renews each until it is lost.
// It then prints the lock and its last Expires.
func sessionHolder(url string) {
	var wg sync.WaitGroup
	for i := range pausedSessions {
		b, err := open(url)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		l, err := b.Acquire(context.Background(), request(fmt.Sprint("p", i), pausedTTL))
		if err != nil { // so slow a machine that the grant was over
			fmt.Println(i, 0)
			continue
		}
		wg.Go(func() {
			for range time.Tick(pausedTTL / 5) {
				if _, err := l.Renew(context.Background(), &driver.Renewal{TTL: pausedTTL}); err != nil {
					fmt.Println(i, time.Now().Add(time.Until(l.Grant().Expires)).UnixNano())
					return
				}
			}
		})
	}
	fmt.Println("ready")
	wg.Wait()
}

// A process is stopped at any point of its renewals. When it goes on, none of its leases has
// lasted longer than the server's lock.
func TestDeadlineIsNeverLaterThanTheReleaseOfAPausedProcess(t *testing.T) {
	t.Parallel()
	s := database(t)
	ids := make([]int64, pausedSessions)
	for i := range ids {
		ids[i] = opener(t, s.URL()).Number(fmt.Sprint("p", i))
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperURL+"="+s.URL(), helperURL+"_MANY=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
		t.Logf("before the pause: %s", lines.Text()) // lost already: nothing to see
	}
	<-time.After(pausedTTL + rand.N(pausedTTL/5)) // so that renewals of any age are under way
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	db := admin(t, s.URL())
	freed := whenFreed(t, db, ids)
	_ = db.Close(context.Background())
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	trials := 0
	for lines.Scan() {
		var i int
		var expires int64
		if _, err := fmt.Sscan(lines.Text(), &i, &expires); err != nil {
			t.Fatalf("the holder says %q", lines.Text())
		}
		trials++
		if early := time.Unix(0, expires).Sub(freed[i]); early > 0 {
			t.Errorf("the server freed the lock of session %d %v before Expires", i, early)
		}
	}
	t.Logf("%d sessions of a paused process", trials)
}

// whenFreed returns an instant for each lock at which it was free, found by trying.
func whenFreed(t *testing.T, db *pgx.Conn, ids []int64) []time.Time {
	t.Helper()
	freed := make([]time.Time, len(ids))
	eventually(t, "all are free", func() bool {
		left := 0
		for i, id := range ids {
			if !freed[i].IsZero() {
				continue
			}
			var got bool
			if err := db.QueryRow(context.Background(), "SELECT pg_try_advisory_lock($1)", id).Scan(&got); err != nil {
				t.Fatal(err)
			}
			if got {
				freed[i] = time.Now()
			} else {
				left++
			}
		}
		return left == 0
	})
	return freed
}

func TestAHolderKilledInTheMiddleOfAStatementIsNoticedByTheCheck(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	b := opener(t, s.URL())
	blocker := must(t, b, request("other", time.Hour))
	p, fence := startHolder(t, s.URL(), "other", longTTL)
	eventually(t, "it waits", func() bool { return count(t, db, advisory+" AND NOT granted") == 1 })
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_ = next(t, b, fence)
	eventually(t, "its wait has gone", func() bool { return count(t, db, advisory+" AND NOT granted") == 0 })
	t.Logf("noticed after %v, the bound is %v", time.Since(start), 2*checkEvery)
	if _, err := renew(blocker, time.Hour); err != nil {
		t.Error(err)
	}
}
