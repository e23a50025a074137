package driver

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver/quorum"
)

func TestNextFence(t *testing.T) {
	now := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	us := uint64(now.UnixMicro())
	const slack, lag = uint64(FenceSlack / time.Microsecond), uint64(FenceLag / time.Microsecond)
	for _, c := range []struct {
		name                 string
		counter, floor, want uint64
		now                  time.Time
	}{
		{"first of a key: the clock", 0, 0, us, now},
		{"the counter is behind: the clock", us - 100, 0, us, now},
		{"the counter is at the clock", us, 0, us + 1, now},
		{"the clock went back", us + 5e9, 0, us + 5e9 + 1, now},
		{"a proposal under the clock is taken", 0, us - 7, us - 7, now},
		{"a proposal over the clock is taken", 0, us + 7, us + 7, now},
		{"a proposal under the counter is not", us, us - 7, us + 1, now},
		{"a proposal at the slack", 0, us + slack, us + slack, now},
		{"a proposal over the slack is cut", 0, us + slack + 1, us + slack, now},
		{"a proposal at the lag", 0, us - lag, us - lag, now},
		{"a proposal further behind is raised", 0, us - lag - 1, us - lag, now},
		{"a proposal from before a sleep is raised", 0, us - 3600e6, us - lag, now},
		{"a mad proposal does not poison the counter", us, 1<<64 - 1, us + slack, now},
		{"a clock before 1970", 41, 0, 42, time.Unix(-1e6, 0)},
		{"no token over the largest", MaxFence - 1, 0, MaxFence, now},
		{"a clock past the largest", 7, 0, MaxFence, time.UnixMicro(1 << 54)},
	} {
		if got := NextFence(c.counter, c.floor, c.now); got != c.want {
			t.Errorf("%s: NextFence(%d, %d) = %d, want %d", c.name, c.counter, c.floor, got, c.want)
		}
	}
	if float64(MaxFence) != MaxFence || MaxFence >= 1<<53 {
		t.Error("the largest token does not fit a float64")
	}
}

func TestCheckNamesWhatCannotBeHonoured(t *testing.T) {
	plain := Info{Name: "plain", MinTTL: MinTTL, MaxTTL: time.Hour}
	session := Info{Name: "session", Features: FeatureSession}
	full := Info{Name: "full", Features: FeatureShared | FeatureFencing | FeatureQueueing | FeatureQuorumNode | FeatureTokens, MinTTL: MinTTL, MaxTTL: time.Hour}
	good := Request{Key: "k", Owner: "o/1", TTL: time.Second}
	with := func(f func(*Request)) *Request {
		r := good
		f(&r)
		return &r
	}
	for _, c := range []struct {
		info   Info
		prefix string
		req    *Request
		names  string // empty: it can be honoured
	}{
		{plain, "", &good, ""},
		{plain, "", with(func(r *Request) { r.Key = "" }), "key: is empty"},
		{plain, "", with(func(r *Request) { r.Key = strings.Repeat("k", MaxKey) }), ""},
		{plain, "", with(func(r *Request) { r.Key = strings.Repeat("k", MaxKey+1) }), "key: has 513 bytes, the limit is 512"},
		{plain, "app:", with(func(r *Request) { r.Key = strings.Repeat("k", MaxKey-3) }), "key: has 513 bytes with its prefix"},
		{plain, "", with(func(r *Request) { r.Owner = "" }), "owner: is empty"},
		{plain, "", with(func(r *Request) { r.Mode = 2 }), "mode: 2 is unknown"},
		{plain, "", with(func(r *Request) { r.Mode = Shared }), "mode: plain has no shared mode"},
		{full, "", with(func(r *Request) { r.Mode = Shared }), ""},
		{plain, "", with(func(r *Request) { r.Tokens = 1 }), ""},
		{plain, "", with(func(r *Request) { r.Tokens = 2 }), "tokens: plain gives one for each grant"},
		{full, "", with(func(r *Request) { r.Tokens = MaxTokens }), ""},
		{full, "", with(func(r *Request) { r.Tokens = MaxTokens + 1 }), "tokens: 16385 are over the maximum of 16384"},
		{plain, "", with(func(r *Request) { r.ExactFence = 1 }), "plain cannot be a node"},
		{plain, "", with(func(r *Request) { r.Quorum = &quorum.Info{Terms: quorum.Terms{N: 3}} }), "plain cannot be a node"},
		{full, "", with(func(r *Request) { r.ExactFence, r.Quorum = 1, &quorum.Info{Terms: quorum.Terms{N: 3}} }), ""},
		{plain, "", with(func(r *Request) { r.TTL = MinTTL - 1 }), "TTL: 9.999999ms is under the minimum of plain, 10ms"},
		{plain, "", with(func(r *Request) { r.TTL = 0 }), "TTL: 0s is under"},
		{plain, "", with(func(r *Request) { r.TTL = time.Hour + 1 }), "over the maximum of plain, 1h0m0s"},
		{session, "", with(func(r *Request) { r.TTL = 0 }), ""},
		{session, "", &good, "TTL: session has none"},
	} {
		err := c.info.Check(c.prefix, c.req)
		if c.names == "" {
			if err != nil {
				t.Errorf("%+v: %v", c.req, err)
			}
			continue
		}
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.names) {
			t.Errorf("got %v, want ErrInvalid that says %q", err, c.names)
		}
	}
}

func TestNamesForPeople(t *testing.T) {
	for got, want := range map[string]string{
		Features(0).String():    "",
		FeatureFencing.String(): "fencing",
		(FeatureShared | FeatureFencing | FeatureSession | FeatureQueueing | FeatureQuorumNode).String():                    "shared,fencing,session,queueing,node",
		(FeatureShared | FeatureQuorumNode | 1<<20).String():                                                                "shared,node",
		Exclusive.String() + " " + Shared.String() + " " + Mode(9).String():                                                 "exclusive shared unknown",
		SeverityNote.String() + " " + SeverityWarning.String() + " " + SeverityUnsafe.String() + " " + Severity(9).String(): "note warning unsafe unknown",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	f := FeatureShared | FeatureFencing
	if !f.Has(0) || !f.Has(FeatureFencing) || !f.Has(f) || f.Has(FeatureFencing|FeatureQuorumNode) {
		t.Errorf("Has of %v", f)
	}
}

// dueContext is one whose timer has not run yet.
type dueContext struct {
	context.Context
	deadline time.Time
}

func (c dueContext) Deadline() (time.Time, bool) { return c.deadline, true }

func TestContextErrSeesADeadlineBeforeItsTimer(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for want, ctx := range map[error]context.Context{
		nil:                      dueContext{t.Context(), time.Now().Add(time.Hour)},
		context.DeadlineExceeded: dueContext{t.Context(), time.Now()},
		context.Canceled:         dueContext{ended, time.Now()},
	} {
		if got := ContextErr(ctx); !errors.Is(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}
