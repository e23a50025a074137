package async

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type task func()

func (t task) Run() { t() }

// A worker that has run its task runs the next one; it ends when it was idle for long, or when
// Close ends it.
func TestWorkersAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Workers
		want := func(n int, when string) {
			t.Helper()
			synctest.Wait()
			if w.Len() != n {
				t.Errorf("%s there are %d workers, want %d", when, w.Len(), n)
			}
		}
		run := func(at, n int) { // n tasks, at most so many at a time
			for range n / at {
				var all sync.WaitGroup
				all.Add(at)
				for range at {
					w.Start(task(func() {
						time.Sleep(time.Millisecond)
						all.Done()
					}))
				}
				all.Wait()
				synctest.Wait()
			}
		}
		run(1, 100)
		want(1, "after one task at a time")
		run(3, 99)
		want(3, "after three tasks at a time")
		for range 3 * idleTime / time.Second {
			run(1, 1)
			time.Sleep(time.Second)
		}
		want(1, "after a time of one task at a time")
		time.Sleep(3 * idleTime)
		want(0, "after a time without tasks")
		run(2, 2)
		w.Start(task(func() { time.Sleep(time.Second) }))
		synctest.Wait()
		w.Close()
		want(1, "while a task runs after Close")
		time.Sleep(2 * time.Second)
		want(0, "after that task")
		run(1, 10)
		want(0, "after tasks that came after Close")
	})
}

// Tasks beyond the bound of workers wait in order, and are refused beyond the bound of the queue.
func TestWorkersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := Workers{Most: 2, Queue: 3}
		var began []int
		var mu sync.Mutex
		for i := range 6 {
			started := w.Start(task(func() {
				mu.Lock()
				began = append(began, i)
				mu.Unlock()
				time.Sleep(time.Second)
			}))
			if started != (i < 5) {
				t.Errorf("task %d was started: %v", i, started)
			}
			synctest.Wait()
		}
		w.Close()
		time.Sleep(time.Minute)
		synctest.Wait()
		if !slices.Equal(began, []int{0, 1, 2, 3, 4}) || w.Len() != 0 {
			t.Errorf("the tasks %v began, and %d workers are left", began, w.Len())
		}
	})
}
