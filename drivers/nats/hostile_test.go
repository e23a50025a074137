package nats_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// What other programs write to the bucket is shown and broken as a lock of somebody unknown, or is
// free for a waiter; and a waiter of theirs that does not come leaves the queue.
func TestMessagesOfOthers(t *testing.T) {
	g := server.NATS(t, 1)
	b := open(t, urlOf(g.Addrs()))
	drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("k", time.Second)))
	must(t, jetStream(g, func(ctx context.Context, js jetstream.JetStream) error {
		s, err := js.Stream(ctx, "KV_dlock")
		must(t, err)
		send := func(subject, op, data string) {
			m := client.NewMsg(strings.TrimSuffix(s.CachedInfo().Config.Subjects[0], ">") + subject)
			if op != "" {
				m.Header.Set("KV-Operation", op)
			}
			m.Data = []byte(data)
			_, err := js.PublishMsg(ctx, m)
			must(t, err)
		}
		send("w.k.theirs", "", "garbage")
		for _, c := range [][2]string{
			{"", ""}, {"", "garbage"}, {"", `{"owner":"x\n","next":"b"}`}, {"", `{"owner":"x","since_us":9223372036854775807}`},
			{"", `{"owner":"x","token":18446744073709551615}`}, {"PURGE", ""}, {"DEL", `{"next":"a.*> \r\n"}`},
		} {
			send("k.k", c[0], c[1])
			s, err := b.Lookup(ctx, "k")
			must(t, err)
			if _, err := json.Marshal(s); err != nil {
				t.Errorf("%q: %v", c, err)
			}
			for _, h := range s.Holders {
				must(t, b.Break(ctx, "k", h))
			}
			l := <-drivertest.Waiter(t, b, drivertest.NewRequest("k", time.Second))
			drivertest.Release(t, l)
		}
		names := 0
		must(t, b.List(ctx, "", func(*driver.State) bool { names++; return true }))
		if names > 0 {
			t.Errorf("%d locks are held", names)
		}
		for { // it is removed in the background
			i, err := s.Info(ctx, jetstream.WithSubjectFilter("$KV.dlock.*.w.>"))
			if err != nil || len(i.State.Subjects) == 0 {
				return err
			}
		}
	}))
}

// Errors name the driver once, and nothing that package dlock names.
func TestErrors(t *testing.T) {
	g := server.NATS(t, 1)
	drivertest.RunErrors(t, open(t, urlOf(g.Addrs())), "nats: ", g.Kill, g.Start)
	must(t, g.Kill())
	_, err := acquire(t, open(t, urlOf(g.Addrs())), "k")
	if err == nil || strings.Count(err.Error(), "nats: ") != 1 || !strings.Contains(err.Error(), g.Addrs()[0]) {
		t.Errorf("a first connection: %v", err)
	}
}
