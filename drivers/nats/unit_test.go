package nats

import (
	"net/url"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/redlock-go/redlock/driver"
)

// FuzzStored reads keys and what is stored: a name is one token that gives its key back, and no
// message makes a holder without a name, or a long one.
func FuzzStored(f *testing.F) {
	f.Add("a key", "MaxAge", "", "1s", []byte(`{"owner":"a/b","token":7}`))
	f.Add("*.>\x00\xff", "", "DEL", "-1s", []byte(`{"next":"b"}`))
	f.Add("..", "", "", "99999h", []byte(`{"owner":1}`))
	f.Fuzz(func(t *testing.T, key, marker, op, ttl string, data []byte) {
		n := name(key)
		if back, err := url.QueryUnescape(n); err != nil || back != key || strings.ContainsAny(n, ".*> \t\r\n") {
			t.Errorf("the name of %q is %q", key, n)
		}
		r := parse(nats.Header{jetstream.MarkerReasonHeader: {marker}, headerOp: {op}, jetstream.MsgTTLHeader: {ttl}}, data)
		if free := marker != "" || op != ""; free != (r.Owner == "") || len(r.Owner) > maxMessage || r.ttl < 0 || r.ttl > 2*maxTTL ||
			r.Token > driver.MaxFence {
			t.Errorf("%q: %+v", data, r)
		}
	})
}

func TestOldServersAreRefused(t *testing.T) {
	for version, want := range map[string]bool{"2.9.10": false, "2.11.0": true, "2.15.2": true, "3.0.0": true, "": false, "v": false, "2": false} {
		if newEnough(version) != want {
			t.Errorf("newEnough(%q) is %v", version, !want)
		}
	}
}
