package redlocktest

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Benchmark measures the backend that h opens, each part a sub-benchmark: a lock and its
// release by one goroutine, by many on keys of their own, a renewal, a refusal, and the handing
// over of one key between two clients. An operation that fails ends the benchmark, so that only
// successful operations are measured.
func Benchmark(b *testing.B, h Harness) {
	h, err := h.complete()
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		do   func(*bench)
	}{
		{"AcquireRelease", (*bench).alone},
		{"AcquireReleaseParallel", (*bench).parallel},
		{"Renew", (*bench).renewal},
		{"Held", (*bench).refusal},
		{"Handoff", (*bench).handoff},
	} {
		b.Run(c.name, func(b *testing.B) {
			m := &bench{B: b, h: &h}
			m.one = m.open()
			m.ReportAllocs()
			c.do(m)
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
	m.Cleanup(func() {
		if err := backend.Close(); err != nil {
			m.Error(err)
		}
	})
	return backend
}

// request makes owners cheaply, so that the benchmark measures the backend.
func (m *bench) request(key string) *driver.Request {
	i := m.one.Info()
	return &driver.Request{
		Key:   key,
		Owner: ownerLabel + strconv.FormatUint(m.owners.Add(1), 36),
		TTL:   min(i.MaxTTL, max(10*time.Second, i.MinTTL)),
	}
}

func (m *bench) key() string { return (&run{name: m.Name()}).key() }

func (m *bench) acquire(backend driver.Backend, req *driver.Request) driver.Lease {
	l, err := backend.Acquire(context.Background(), req)
	if err != nil {
		m.Error(err)
		return nil
	}
	return l
}

// cycle acquires and releases once, and reports whether both worked.
func (m *bench) cycle(key string) bool {
	l := m.acquire(m.one, m.request(key))
	if l == nil {
		return false
	}
	if err := l.Release(context.Background()); err != nil {
		m.Error(err)
		return false
	}
	return true
}

func (m *bench) alone() {
	key := m.key()
	for m.Loop() {
		if !m.cycle(key) {
			return
		}
	}
}

func (m *bench) parallel() {
	m.RunParallel(func(pb *testing.PB) {
		key := m.key()
		for pb.Next() {
			if !m.cycle(key) {
				return
			}
		}
	})
}

func (m *bench) renewal() {
	req := m.request(m.key())
	l := m.acquire(m.one, req)
	if l == nil {
		return
	}
	for m.Loop() {
		if _, err := l.Renew(context.Background(), &driver.Renewal{TTL: req.TTL}); err != nil {
			m.Fatal(err)
		}
	}
	m.release(l)
}

// refusal asks for a held key; the holder's renewals are not measured.
func (m *bench) refusal() {
	key := m.key()
	req := m.request(key)
	l := m.acquire(m.one, req)
	if l == nil {
		return
	}
	end := l.Grant().Expires
	for m.Loop() {
		if other, err := m.one.Acquire(context.Background(), m.request(key)); err == nil {
			m.release(other)
			m.Fatal("a held key was granted")
		}
		if end.IsZero() || time.Until(end) > req.TTL/2 {
			continue
		}
		m.StopTimer()
		g, err := l.Renew(context.Background(), &driver.Renewal{TTL: req.TTL})
		if err != nil {
			m.Fatal(err)
		}
		end = g.Expires
		m.StartTimer()
	}
	m.release(l)
}

func (m *bench) release(l driver.Lease) {
	if err := l.Release(context.Background()); err != nil {
		m.Error(err)
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
	done := make(chan struct{}, 2)
	for _, backend := range []driver.Backend{m.one, two} {
		go func() {
			defer func() { done <- struct{}{} }()
			for turns.Add(-1) >= 0 && m.turn(backend, key) {
			}
		}()
	}
	<-done
	<-done
}

func (m *bench) turn(backend driver.Backend, key string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), m.h.Timeout)
	defer cancel()
	for {
		req := m.request(key)
		req.Wait = true
		l, err := backend.Acquire(ctx, req)
		if err == nil {
			m.release(l)
			return true
		}
		if v := classify(err); ctx.Err() != nil || v != held && v != unknown && v != later {
			m.Error(err)
			return false
		}
		time.Sleep(time.Millisecond)
	}
}
