package redlock_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
)

const (
	busyURL    = "REDLOCK_TEST_BUSY"
	busyCrowd  = 64
	busyBeside = 4
)

// becomeBusy is the main function of a process with one processor. The process either burns
// processor time, or runs many goroutines that each take their own lock.
func becomeBusy(url string) {
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // the parent process closes stdin
		close(done)
	}()
	if url == "burn" {
		for burning := true; burning; {
			select {
			case <-done:
				burning = false
			default:
			}
		}
		return
	}
	c, err := dlock.OpenURL(url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var locks, silences, others atomic.Int64
	var crowd sync.WaitGroup
	for i := range busyCrowd {
		crowd.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				l, err := c.TryLock(context.Background(), fmt.Sprint("busy/", i, "/", n))
				switch {
				case err == nil:
					locks.Add(1)
					_ = l.Unlock() // a late answer is allowed
				case strings.Contains(err.Error(), "no answer within"), strings.Contains(err.Error(), "deadline exceeded"), strings.Contains(err.Error(), "in time"):
					silences.Add(1)
				default:
					others.Add(1)
				}
			}
		})
	}
	crowd.Wait()
	fmt.Println(locks.Load(), silences.Load(), others.Load())
}

// Many callers run in one process, beside processes that take all the processor time they get.
// Nodes that answer in time must not be blamed for the process's own delay.
func BenchmarkABusyProcess(b *testing.B) {
	for _, scheme := range []string{"redis", "valkey"} {
		for _, timeout := range []string{"50ms", "100ms", "200ms", "400ms"} {
			b.Run(scheme+"/node_timeout="+timeout, func(b *testing.B) {
				c := start(b, 3, scheme)
				var locks, silences, others int
				for range b.N {
					l, s, o := crowd(b, c.url(false, "node_timeout="+timeout))
					locks, silences, others = locks+l, silences+s, others+o
				}
				tries := float64(max(locks+silences+others, 1))
				b.ReportMetric(float64(locks)/float64(b.N), "locks/op")
				b.ReportMetric(100*float64(silences)/tries, "%silent")
				b.ReportMetric(100*float64(others)/tries, "%other")
			})
		}
	}
}

// crowd runs a busy process for a while, and returns the results of its attempts.
func crowd(b *testing.B, url string) (locks, silences, others int) {
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	run := func(what string, out io.Writer) (end func()) {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), busyURL+"="+what, "GOMAXPROCS=1")
		cmd.Stdout = out
		in, err := cmd.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		return func() {
			_ = in.Close()
			if err := cmd.Wait(); err != nil {
				b.Error(err)
			}
		}
	}
	for range busyBeside {
		defer run("burn", nil)()
	}
	var out strings.Builder
	end := run(url, &out)
	time.Sleep(2 * time.Second)
	end()
	if _, err := fmt.Sscan(out.String(), &locks, &silences, &others); err != nil {
		b.Fatal(err)
	}
	return locks, silences, others
}
