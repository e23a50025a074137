// Package otellock reports a dlock client to OpenTelemetry: spans for Lock, TryLock, Unlock
// and renewals, and metrics.
//
//	telemetry, err := otellock.New()
//	locks, err := dlock.OpenURL(url, dlock.WithHooks(telemetry.Hooks()))
//	err = telemetry.Observe(locks)
//
// The package is a module of its own: only programs that import it depend on OpenTelemetry.
//
// # Spans
//
//   - dlock.lock and dlock.trylock, from the call to its outcome. They are parents of the spans of
//     the backend's client, such as redisotel's. Each request is an event "attempt", and each
//     node of a quorum an event "vote" with its latency.
//   - dlock.unlock.
//   - dlock.renew, for each renewal in the background, and dlock.lost, of no length. Both belong to
//     the trace of the call that took the lock.
//
// Attributes are dlock.key, dlock.fence (the token), dlock.attempts, dlock.passed (true if the lock
// came or went within the process), and error.type where
// something failed: held, unavailable, lost, invalid, closed, canceled. Contention and a caller's
// own cancellation are no errors of a span.
//
// The SDK takes most of the time that a recorded span costs: use sampling if your program takes
// thousands of locks a second.
//
// # Metrics
//
//	dlock.operation.duration  s           histogram by dlock.operation (lock, trylock, renew, unlock) and error.type
//	dlock.hold.duration       s           histogram of how long leases were held
//	dlock.lease.lost          {lease}     counter
//	dlock.node.failures       {request}   counter by server.address: nodes of a quorum that did not vote
//	dlock.lease.held          {lease}     up-down counter, of clients given to Observe
//	dlock.lease.waiting       {call}      the same, of calls of Lock that wait
//
// No metric has the key as an attribute, because there may be any number of keys. WithKeyClass
// maps keys to a few classes and adds the attribute dlock.key.class.
package otellock

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/redlock-go/redlock/dlock"
)

// scope is the name of the instrumentation.
const scope = "github.com/redlock-go/redlock/dlock/otellock"

// An Option configures New.
type Option func(*Telemetry)

// WithTracerProvider sets where spans go; the global provider by default.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(t *Telemetry) { t.tracer = p.Tracer(scope) }
}

// WithMeterProvider sets where metrics go; the global provider by default.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(t *Telemetry) { t.meter = p.Meter(scope) }
}

// WithKeyClass adds the attribute dlock.key.class to the histograms and counters: the result of
// class for a key. class must return few different values, and be safe for concurrent use.
func WithKeyClass(class func(key string) string) Option {
	return func(t *Telemetry) { t.class = class }
}

// Telemetry makes spans and metrics of a client's hooks. It is safe for concurrent use, and may
// serve several clients.
type Telemetry struct {
	tracer trace.Tracer
	meter  metric.Meter
	class  func(string) string

	duration, hold metric.Float64Histogram
	lost, failures metric.Int64Counter
}

// New returns a Telemetry. An error comes from the meter, about an instrument.
func New(opts ...Option) (*Telemetry, error) {
	t := &Telemetry{tracer: otel.GetTracerProvider().Tracer(scope), meter: otel.GetMeterProvider().Meter(scope)}
	for _, o := range opts {
		o(t)
	}
	var errs [4]error
	buckets := metric.WithExplicitBucketBoundaries(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
	t.duration, errs[0] = t.meter.Float64Histogram("dlock.operation.duration", metric.WithUnit("s"), buckets,
		metric.WithDescription("How long a Lock, TryLock, Unlock or renewal took."))
	t.hold, errs[1] = t.meter.Float64Histogram("dlock.hold.duration", metric.WithUnit("s"), buckets,
		metric.WithDescription("How long a lease was held, from its grant to its release or loss."))
	t.lost, errs[2] = t.meter.Int64Counter("dlock.lease.lost", metric.WithUnit("{lease}"), metric.WithDescription("Leases that were lost."))
	t.failures, errs[3] = t.meter.Int64Counter("dlock.node.failures", metric.WithUnit("{request}"),
		metric.WithDescription("Requests to a node of a quorum that failed otherwise than by contention."))
	return t, errors.Join(errs[:]...)
}

// Observe reports how many leases clients hold, and how many of their calls wait, in
// dlock.lease.held and dlock.lease.waiting. Call it once, with all clients. The returned error
// comes from the meter.
func (t *Telemetry) Observe(clients ...*dlock.Client) error {
	observe := func(name, unit, help string, read func(*dlock.Stats) int) error {
		sum := func(_ context.Context, o metric.Int64Observer) error {
			n := 0
			for _, c := range clients {
				stats := c.Stats()
				n += read(&stats)
			}
			o.Observe(int64(n))
			return nil
		}
		_, err := t.meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(help), metric.WithInt64Callback(sum))
		return err
	}
	return errors.Join(
		observe("dlock.lease.held", "{lease}", "Leases that are held.", func(s *dlock.Stats) int { return s.Held }),
		observe("dlock.lease.waiting", "{call}", "Calls of Lock that wait.", func(s *dlock.Stats) int { return s.Waiting }))
}

// Hooks returns the hooks that report a client. dlock.WithHooks may be given more than once.
func (t *Telemetry) Hooks() dlock.Hooks { return dlock.Hooks{Start: t.start, Event: t.event} }

func (t *Telemetry) event(ctx context.Context, e dlock.Event) {
	switch e.Op {
	case "attempt":
		t.attempt(ctx, e)
	case "lock", "trylock":
		t.record(ctx, t.duration, e.Waited, e)
		finish(spanOf(ctx), e)
	case "renew":
		t.renewed(ctx, e)
	case "lost":
		t.leaseLost(ctx, e)
	case "unlock":
		t.released(ctx, e)
	}
}

// own is the context key of the span that start made: the context's current span may be another
// package's.
type own struct{}

func spanOf(ctx context.Context) trace.Span {
	if s, ok := ctx.Value(own{}).(trace.Span); ok {
		return s
	}
	return trace.SpanFromContext(context.Background()) // a span without effect
}

func (t *Telemetry) start(ctx context.Context, op, key string) context.Context {
	ctx, span := t.tracer.Start(ctx, "dlock."+op)
	if span.IsRecording() {
		span.SetAttributes(attribute.String("dlock.key", key))
	}
	return context.WithValue(ctx, own{}, span)
}

func (t *Telemetry) attempt(ctx context.Context, e dlock.Event) {
	t.count(ctx, e)
	if span := spanOf(ctx); span.IsRecording() {
		attrs := []attribute.KeyValue{attribute.Int("dlock.attempt", e.Attempt), seconds("dlock.latency", e.Latency)}
		if e.Err != nil {
			attrs = append(attrs, attribute.String("error.type", errorType(e.Err)))
		}
		span.AddEvent("attempt", trace.WithAttributes(attrs...))
		votes(span, e)
	}
}

func (t *Telemetry) released(ctx context.Context, e dlock.Event) {
	t.record(ctx, t.duration, e.Latency, e)
	t.recordHold(ctx, e)
	finish(spanOf(ctx), e)
}

func (t *Telemetry) renewed(ctx context.Context, e dlock.Event) {
	t.count(ctx, e)
	t.record(ctx, t.duration, e.Latency, e)
	end := time.Now()
	_, span := t.tracer.Start(ctx, "dlock.renew", trace.WithTimestamp(end.Add(-e.Latency)))
	if span.IsRecording() {
		span.SetAttributes(attribute.String("dlock.key", e.Key))
		votes(span, e)
	}
	finish(span, e, trace.WithTimestamp(end))
}

func (t *Telemetry) leaseLost(ctx context.Context, e dlock.Event) {
	t.lost.Add(ctx, 1, t.attributes(e.Key))
	t.recordHold(ctx, e)
	_, span := t.tracer.Start(ctx, "dlock.lost", trace.WithAttributes(attribute.String("dlock.key", e.Key)))
	finish(span, e)
}

// record records a duration by operation and outcome.
func (t *Telemetry) record(ctx context.Context, h metric.Float64Histogram, d time.Duration, e dlock.Event) {
	attrs := []attribute.KeyValue{attribute.String("dlock.operation", e.Op)}
	if e.Err != nil {
		attrs = append(attrs, attribute.String("error.type", errorType(e.Err)))
	}
	h.Record(ctx, d.Seconds(), t.attributes(e.Key, attrs...))
}

func (t *Telemetry) recordHold(ctx context.Context, e dlock.Event) {
	if e.Held > 0 { // once for each lease
		t.hold.Record(ctx, e.Held.Seconds(), t.attributes(e.Key))
	}
}

// attributes adds the class of a key.
func (t *Telemetry) attributes(key string, attrs ...attribute.KeyValue) metric.MeasurementOption {
	if t.class != nil {
		attrs = append(attrs, attribute.String("dlock.key.class", t.class(key)))
	}
	return metric.WithAttributes(attrs...)
}

// count counts the nodes of a quorum that failed.
func (t *Telemetry) count(ctx context.Context, e dlock.Event) {
	for i := range e.Votes {
		if v := &e.Votes[i]; v.Err != nil && !errors.Is(v.Err, dlock.ErrHeld) {
			t.failures.Add(ctx, 1, metric.WithAttributes(attribute.String("server.address", v.Node)))
		}
	}
}

// votes adds an event for each node of a quorum.
func votes(span trace.Span, e dlock.Event) {
	if !span.IsRecording() {
		return
	}
	all := make([]attribute.KeyValue, 0, 4*len(e.Votes))
	for i := range e.Votes {
		v := &e.Votes[i]
		begin := len(all)
		all = append(all, attribute.String("server.address", v.Node), attribute.Bool("dlock.granted", v.Granted), seconds("dlock.latency", v.Latency))
		if v.Err != nil {
			all = append(all, attribute.String("error.type", errorType(v.Err)))
		}
		span.AddEvent("vote", trace.WithAttributes(all[begin:len(all):len(all)]...))
	}
}

func seconds(name string, d time.Duration) attribute.KeyValue {
	return attribute.Float64(name, d.Seconds())
}

// finish ends a span.
func finish(span trace.Span, e dlock.Event, opts ...trace.SpanEndOption) {
	if span.IsRecording() {
		attrs := make([]attribute.KeyValue, 0, 3)
		if e.Fence > 0 {
			attrs = append(attrs, attribute.Int64("dlock.fence", int64(e.Fence))) // under 1<<53
		}
		if e.Attempt > 0 {
			attrs = append(attrs, attribute.Int("dlock.attempts", e.Attempt))
		}
		if e.Passed {
			attrs = append(attrs, attribute.Bool("dlock.passed", true))
		}
		if e.Err != nil {
			kind := errorType(e.Err)
			attrs = append(attrs, attribute.String("error.type", kind))
			if kind != "held" && kind != "canceled" {
				span.SetStatus(codes.Error, e.Err.Error())
			}
		}
		span.SetAttributes(attrs...)
	}
	span.End(opts...)
}

// errorType returns the value of error.type.
func errorType(err error) string {
	switch {
	case errors.Is(err, dlock.ErrUnavailable):
		return "unavailable"
	case errors.Is(err, dlock.ErrHeld):
		return "held"
	case errors.Is(err, dlock.ErrLost):
		return "lost"
	case errors.Is(err, dlock.ErrInvalid):
		return "invalid"
	case errors.Is(err, dlock.ErrClosed):
		return "closed"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "canceled"
	}
	return "unavailable"
}
