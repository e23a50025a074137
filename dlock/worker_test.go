package dlock_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/redlock-go/redlock/dlock"
)

// asWorker in the environment makes this test binary a worker; it holds a job as JSON.
const asWorker = "DLOCK_TEST_WORKER"

// A job describes the work of a worker.
type job struct {
	URL   string
	TTL   time.Duration // zero: the backend's
	Slots int           // zero: it leads
}

// A report is a line of JSON from a worker. Times are by the machine's clock, in ns.
type report struct {
	What  string // "got", "renewed" or "gave"
	Slot  int
	Token uint64
	At    int64
	Until int64 // the lease's deadline; zero: it has none
}

// work does a job until its input ends. A line of its input is to resign.
func work(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	resign := make(chan struct{}, 1)
	go func() {
		for in := bufio.NewReader(os.Stdin); ; {
			if _, err := in.ReadString('\n'); err != nil {
				os.Exit(0) // the parent has ended, or closed it
			}
			select {
			case resign <- struct{}{}:
			default:
			}
		}
	}()
	var mu sync.Mutex
	say := func(r report) {
		mu.Lock()
		defer mu.Unlock()
		_ = json.NewEncoder(os.Stdout).Encode(&r) // the parent reads, or has ended
	}
	until := func(t time.Time) int64 {
		if t.IsZero() {
			return 0
		}
		return t.UnixNano()
	}
	got := func(l *dlock.Lease) {
		d, _ := l.Deadline()
		say(report{"got", l.Slot(), l.Fence(), time.Now().UnixNano(), until(d)})
	}
	gave := func(l *dlock.Lease) { say(report{"gave", l.Slot(), l.Fence(), time.Now().UnixNano(), 0}) }
	c, err := dlock.OpenURL(j.URL, dlock.WithLogger(nil), dlock.WithHooks(on("renew", func(_ context.Context, e dlock.Event) {
		if e.Err == nil {
			say(report{What: "renewed", Token: e.Fence, Until: until(e.Deadline)})
		}
	})))
	if err != nil {
		return err
	}
	var opts []dlock.LockOption
	if j.TTL > 0 {
		opts = append(opts, dlock.WithTTL(j.TTL))
	}
	for {
		if j.Slots > 0 {
			err = share(c, got, gave, append(opts, dlock.WithSlots(j.Slots)))
		} else {
			err = dlock.Elect(context.Background(), c, "k", func(ctx context.Context) error {
				l, _ := dlock.LeaseFor(ctx, "k")
				select {
				case <-resign: // of another term
				default:
				}
				got(l)
				select {
				case <-resign:
					gave(l)
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}, opts...)
		}
		if errors.Is(err, dlock.ErrInvalid) || errors.Is(err, dlock.ErrClosed) {
			return err
		}
	}
}

// share holds a slot for a while.
func share(c *dlock.Client, got, gave func(*dlock.Lease), opts []dlock.LockOption) error {
	l, err := c.Lock(context.Background(), "k", opts...)
	if err != nil {
		return err
	}
	got(l)
	select {
	case <-time.After(time.Duration(rand.IntN(100)) * time.Millisecond):
		gave(l)
	case <-l.Done():
	}
	return l.Unlock()
}
