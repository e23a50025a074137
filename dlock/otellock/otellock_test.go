package otellock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/otellock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/memory"
)

// recorded is what the SDK keeps in memory.
type recorded struct {
	t      *testing.T
	spans  *tracetest.InMemoryExporter
	reader *metric.ManualReader
	tracer *sdktrace.TracerProvider
	*otellock.Telemetry
}

func record(t *testing.T, opts ...otellock.Option) *recorded {
	r := &recorded{t: t, spans: tracetest.NewInMemoryExporter(), reader: metric.NewManualReader()}
	r.tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(r.spans))
	meters := metric.NewMeterProvider(metric.WithReader(r.reader))
	var err error
	r.Telemetry, err = otellock.New(append([]otellock.Option{otellock.WithTracerProvider(r.tracer), otellock.WithMeterProvider(meters)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *recorded) client(b driver.Backend, opts ...dlock.Option) *dlock.Client {
	r.t.Helper()
	c, err := dlock.New(b, append(opts, dlock.WithHooks(r.Hooks()), dlock.WithLogger(nil))...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

// named returns the spans of a name.
func (r *recorded) named(name string) tracetest.SpanStubs {
	return slices.DeleteFunc(r.spans.GetSpans(), func(s tracetest.SpanStub) bool { return s.Name != name })
}

func (r *recorded) only(name string) tracetest.SpanStub {
	r.t.Helper()
	spans := r.named(name)
	if len(spans) != 1 {
		r.t.Fatalf("%d spans %s", len(spans), name)
	}
	return spans[0]
}

func has(s tracetest.SpanStub, want ...attribute.KeyValue) bool {
	for _, kv := range want {
		if !slices.Contains(s.Attributes, kv) {
			return false
		}
	}
	return true
}

// metrics returns all points, by the name of the metric and its attributes.
func (r *recorded) metrics() map[string]float64 {
	r.t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.reader.Collect(context.Background(), &all); err != nil {
		r.t.Fatal(err)
	}
	points := map[string]float64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			name := func(set attribute.Set) string {
				text := m.Name
				for _, kv := range set.ToSlice() {
					text += fmt.Sprintf(" %s=%v", kv.Key, kv.Value.AsInterface())
				}
				return text
			}
			switch d := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					points[name(p.Attributes)] = float64(p.Count)
				}
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					points[name(p.Attributes)] = float64(p.Value)
				}
			default:
				r.t.Errorf("%s is a %T", m.Name, d)
			}
		}
	}
	return points
}

func TestEachStepOfALeaseHasASpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		b := memory.New()
		c, other := r.client(&spy{b, r.tracer.Tracer("client")}, dlock.WithTTL(3*time.Second)), r.client(b.Peer())
		ctx, parent := r.tracer.Tracer("program").Start(t.Context(), "request")
		l, err := c.Lock(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		parent.End()
		if _, err := other.TryLock(t.Context(), "k"); !errors.Is(err, dlock.ErrHeld) {
			t.Fatal(err)
		}
		time.Sleep(1100 * time.Millisecond) // the first renewal
		synctest.Wait()
		if err := l.Unlock(); err != nil {
			t.Fatal(err)
		}
		lock, trylock, renew, unlock := r.only("dlock.lock"), r.only("dlock.trylock"), r.only("dlock.renew"), r.only("dlock.unlock")
		fence := attribute.Int64("dlock.fence", int64(l.Fence()))
		key := attribute.String("dlock.key", "k")
		if !has(lock, key, fence, attribute.Int("dlock.attempts", 1)) || lock.Parent.SpanID() != parent.SpanContext().SpanID() || len(lock.Events) != 1 || lock.Events[0].Name != "attempt" {
			t.Errorf("lock: %+v", lock)
		}
		if !has(trylock, key, attribute.String("error.type", "held")) || trylock.Status.Code != codes.Unset {
			t.Errorf("trylock: %+v", trylock)
		}
		if child := r.only("client"); child.Parent.SpanID() != lock.SpanContext.SpanID() {
			t.Errorf("the client's span is a child of %v", child.Parent.SpanID())
		}
		for _, s := range []tracetest.SpanStub{renew, unlock} {
			if !has(s, key, fence) || s.Parent.SpanID() != lock.SpanContext.SpanID() || s.Status.Code != codes.Unset {
				t.Errorf("%s: %+v", s.Name, s)
			}
		}
	})
}

func TestALossIsASpanAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record(t)
		b := memory.New()
		c := r.client(b, dlock.WithTTL(3*time.Second))
		l, err := c.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Peer().Break(t.Context(), "k", driver.Holder{Fence: l.Fence()}); err != nil {
			t.Fatal(err)
		}
		<-l.Done()
		synctest.Wait()
		if s := r.only("dlock.lost"); s.Status.Code != codes.Error || !has(s, attribute.String("error.type", "lost")) {
			t.Errorf("lost: %+v", s)
		}
		_ = l.Unlock()
		if l, err = c.Lock(t.Context(), "k", dlock.WithMaxHold(time.Second)); err != nil {
			t.Fatal(err)
		}
		<-l.Done()
		_ = l.Unlock() // the server releases it; the lease was lost before
		synctest.Wait()
		m := r.metrics()
		if m["dlock.lease.lost"] != 2 || m["dlock.hold.duration"] != 2 {
			t.Errorf("the metrics are %v", m)
		}
	})
}

func TestMetricsHaveNoKeysButTheirClasses(t *testing.T) {
	b := memory.New()
	run := func(r *recorded) map[string]float64 {
		c := r.client(b.Peer())
		if err := r.Observe(c); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"reports/1", "reports/2", "mail/1"} {
			l, err := c.Lock(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if key != "mail/1" {
				err = l.Unlock()
			} else {
				t.Cleanup(func() { _ = l.Unlock() })
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		m := r.metrics()
		for name := range m {
			if strings.Contains(name, "/1") || strings.Contains(name, "/2") {
				t.Errorf("a key is in %s", name)
			}
		}
		return m
	}
	m := run(record(t))
	if m["dlock.operation.duration dlock.operation=lock"] != 3 || m["dlock.operation.duration dlock.operation=unlock"] != 2 || m["dlock.hold.duration"] != 2 || m["dlock.lease.held"] != 1 {
		t.Errorf("the metrics are %v", m)
	}
	b = memory.New()
	m = run(record(t, otellock.WithKeyClass(func(key string) string { class, _, _ := strings.Cut(key, "/"); return class })))
	if m["dlock.operation.duration dlock.key.class=reports dlock.operation=lock"] != 2 || m["dlock.hold.duration dlock.key.class=reports"] != 2 {
		t.Errorf("the metrics with classes are %v", m)
	}
}

func TestEveryVoteIsAnEventAndAFailureIsCounted(t *testing.T) {
	r := record(t)
	r.Hooks().Event(t.Context(), dlock.Event{Op: "renew", Key: "k", Votes: []quorum.Vote{
		{Node: "a", Granted: true}, {Node: "b", Err: errors.New("the disk is full")}, {Node: "c", Err: &driver.HeldError{}},
	}})
	got := map[string]bool{} // whether a node's event has the type of an error
	for _, e := range r.only("dlock.renew").Events {
		for node, kind := range map[string]string{"a": "", "b": "unavailable", "c": "held"} {
			if slices.Contains(e.Attributes, attribute.String("server.address", node)) {
				got[node] = (kind == "") == !slices.ContainsFunc(e.Attributes, func(kv attribute.KeyValue) bool { return kv.Key == "error.type" }) &&
					(kind == "" || slices.Contains(e.Attributes, attribute.String("error.type", kind)))
			}
		}
	}
	if !got["a"] || !got["b"] || !got["c"] {
		t.Errorf("the votes are %+v", r.only("dlock.renew").Events)
	}
	if m := r.metrics(); m["dlock.node.failures server.address=b"] != 1 || m["dlock.node.failures server.address=c"] != 0 {
		t.Errorf("the metrics are %v", m)
	}
}

// spy is a backend whose calls are spans, as a client library's are.
type spy struct {
	*memory.Backend
	tracer trace.Tracer
}

func (s *spy) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	ctx, span := s.tracer.Start(ctx, "client")
	defer span.End()
	return s.Backend.Acquire(ctx, r)
}
