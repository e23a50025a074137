package redlocktest

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Benchmark measures the backend that h opens, each part a sub-benchmark: a lock and its release by
// one goroutine, by many on keys of their own, a renewal, and the handing over of one key between
// two clients. An operation that fails ends the benchmark, so that only successful operations are
// measured.
func Benchmark(b *testing.B, h Harness) {
	h, err := h.complete()
	if err != nil {
		b.Fatal(err)
	}
	for name, do := range map[string]func(*bench){
		"AcquireRelease": (*bench).alone, "AcquireReleaseParallel": (*bench).parallel, "Renew": (*bench).renewal, "Handoff": (*bench).handoff,
	} {
		b.Run(name, func(b *testing.B) {
			m := &bench{B: b, h: &h}
			m.one = m.open()
			m.ReportAllocs()
			do(m)
		})
	}
}

// bench is one benchmark of one backend.
type bench struct {
	*testing.B
	h      *Harness
	one    driver.Backend
	owners atomic.Uint64
}

func (m *bench) open() driver.Backend {
	backend, err := m.h.Open()
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { _ = backend.Close() })
	return backend
}

// request makes owners cheaply, so that the benchmark measures the backend.
func (m *bench) request(key string) *driver.Request {
	i := m.one.Info()
	return &driver.Request{
		Key: key, Owner: ownerLabel + strconv.FormatUint(m.owners.Add(1), 36), TTL: min(i.MaxTTL, max(10*time.Second, i.MinTTL)),
	}
}

func (m *bench) key() string { return (&run{name: m.Name()}).key() }

// cycle acquires and releases once, and reports whether both worked.
func (m *bench) cycle(key string) bool {
	l, err := m.one.Acquire(context.Background(), m.request(key))
	if err == nil {
		err = l.Release(context.Background())
	}
	if err != nil {
		m.Error(err)
	}
	return err == nil
}

func (m *bench) alone() {
	for key := m.key(); m.Loop() && m.cycle(key); {
	}
}

func (m *bench) parallel() {
	m.RunParallel(func(pb *testing.PB) {
		for key := m.key(); pb.Next() && m.cycle(key); {
		}
	})
}

func (m *bench) renewal() {
	req := m.request(m.key())
	l, err := m.one.Acquire(context.Background(), req)
	for err == nil && m.Loop() {
		_, err = l.Renew(context.Background(), &driver.Renewal{TTL: req.TTL})
	}
	if err == nil {
		err = l.Release(context.Background())
	}
	if err != nil {
		m.Fatal(err)
	}
}

// handoff passes one key between two clients, each a goroutine: one operation is one hold,
// including the wait of the next owner. Backends that do not wait by themselves are polled.
func (m *bench) handoff() {
	key := m.key()
	two := m.open()
	var turns atomic.Int64
	turns.Store(int64(m.N))
	m.ResetTimer()
	var both sync.WaitGroup
	for _, backend := range []driver.Backend{m.one, two} {
		both.Go(func() {
			for turns.Add(-1) >= 0 && m.turn(backend, key) {
			}
		})
	}
	both.Wait()
}

func (m *bench) turn(backend driver.Backend, key string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), m.h.Timeout)
	defer cancel()
	for {
		req := m.request(key)
		req.Wait = true
		l, err := backend.Acquire(ctx, req)
		if err == nil {
			err = l.Release(ctx)
			if err == nil {
				return true
			}
		}
		if v := classify(err); ctx.Err() != nil || v != held && v != unknown && v != later {
			m.Error(err)
			return false
		}
		time.Sleep(time.Millisecond)
	}
}
