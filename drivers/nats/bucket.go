package nats

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/redlock-go/redlock/driver"
)

// layout is the version of what is stored, in the bucket's metadata.
const layout = "1"

// Keys of the bucket's metadata.
const (
	metaLayout = "dlock-layout"
	metaEpoch  = "dlock-epoch"
)

// A bucket is what a backend knows of its bucket.
type bucket struct {
	nc   *nats.Conn
	js   jetstream.JetStream
	s    jetstream.Stream
	root string // of the subjects, before "$KV." or "$DLOCK."
	base uint64 // of the tokens: when the bucket was made, in microseconds
	seen time.Time
	at   time.Time // the server's clock when it was seen

	replicas int
}

// How long markers of ended locks are kept, and how long what is known of the bucket holds.
const (
	markerTTL   = 2 * time.Minute
	bucketLasts = 5 * time.Minute
)

// bucket returns the bucket. It is made at the first use, unless it is there. What comes too late for
// one call serves the next.
func (b *Backend) bucket(ctx context.Context) (*bucket, error) {
	for {
		b.mu.Lock()
		k := b.bound
		b.mu.Unlock()
		if k != nil && time.Since(k.seen) < bucketLasts {
			return k, nil
		}
		if err := b.opening.Do(ctx, &b.calls, b.look); err != nil {
			return nil, err
		}
	}
}

// look connects and looks for the bucket.
func (b *Backend) look(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, b.opt.CallTimeout)
	defer cancel()
	b.mu.Lock()
	nc := b.conn
	b.mu.Unlock()
	if nc == nil {
		if nc, err = b.dial(); err != nil {
			return b.explain(err)
		}
	}
	k, err := b.find(ctx, nc)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conn, b.bound = nc, k
	return err
}

func (b *Backend) find(ctx context.Context, nc *nats.Conn) (*bucket, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	b.complaint.Store(nil)
	s, err := js.Stream(ctx, "KV_"+b.opt.Bucket)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = b.create(ctx, nc, js)
	}
	var info *jetstream.StreamInfo
	sent := time.Now()
	if err == nil { // again, for the clock: the first answer may have waited for the connection
		info, err = s.Info(ctx)
	}
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, &driver.RefusedError{Reason: "no server answers for JetStream: enable it on the servers and for the account", RetryAfter: time.Second}
	}
	if err != nil {
		return nil, b.explain(err)
	}
	if err := check(&info.Config); err != nil {
		return nil, err
	}
	return &bucket{
		nc: nc, js: js, s: s, root: b.opt.Bucket + "." + info.Config.Metadata[metaEpoch] + ".", base: uint64(info.Created.UnixMicro()),
		seen: sent, at: info.TimeStamp.Add(-time.Since(sent) / 2), replicas: info.Config.Replicas,
	}, nil
}

func (b *Backend) create(ctx context.Context, nc *nats.Conn, js jetstream.JetStream) (jetstream.Stream, error) {
	if v := nc.ConnectedServerVersion(); !newEnough(v) {
		return nil, &driver.RefusedError{Reason: "the server is NATS " + strconv.Quote(v) + ", which has no TTL of messages: upgrade to 2.11 or newer"}
	}
	epoch := nuid.Next()
	root := b.opt.Bucket + "." + epoch + ".>"
	c := jetstream.StreamConfig{
		Name: "KV_" + b.opt.Bucket, Description: "locks of dlock", Subjects: []string{"$KV." + root},
		Discard: jetstream.DiscardNew, Replicas: 1, MaxMsgsPerSubject: 1, MaxMsgSize: maxMessage,
		AllowMsgTTL: true, SubjectDeleteMarkerTTL: markerTTL, AllowRollup: true,
		RePublish: &jetstream.RePublish{Source: "$KV." + root, Destination: "$DLOCK." + root},
		Metadata:  map[string]string{metaLayout: layout, metaEpoch: epoch},
	}
	if nc.ConnectedClusterName() != "" {
		c.Replicas = 3
	}
	s, err := js.CreateStream(ctx, c)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another client was first
		return js.Stream(ctx, c.Name)
	}
	return s, err
}

// newEnough reports whether a server's version is 2.11 or newer.
func newEnough(version string) bool {
	var major, minor int
	_, err := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return err == nil && (major > 2 || major == 2 && minor >= 11)
}

const anew = ": delete it while no lock is held, and this driver makes it anew"

// check refuses a bucket on which locks would be lost or kept for ever.
func check(c *jetstream.StreamConfig) error {
	refuse := func(format string, args ...any) error {
		return &driver.RefusedError{Reason: fmt.Sprintf("the bucket %s ", strconv.Quote(strings.TrimPrefix(c.Name, "KV_"))) + fmt.Sprintf(format, args...)}
	}
	epoch := c.Metadata[metaEpoch]
	switch found := c.Metadata[metaLayout]; {
	case found == "":
		return refuse("was not made by this driver: name another bucket")
	case found != layout:
		return refuse("has layout %s, and this release knows layout %s: use the release that wrote it", strconv.Quote(found), layout)
	case !c.AllowMsgTTL || c.SubjectDeleteMarkerTTL <= 0:
		return refuse("keeps no TTLs" + anew)
	case c.MaxMsgsPerSubject != 1 || c.MaxAge != 0 || c.Retention != jetstream.LimitsPolicy || c.Discard != jetstream.DiscardNew && (c.MaxMsgs > 0 || c.MaxBytes > 0):
		return refuse("has limits by which the server may forget locks" + anew)
	case epoch == "" || strings.ContainsAny(epoch, ".*> \t\r\n") || c.RePublish == nil || c.Sealed || c.NoAck || c.AllowDirect || c.DenyPurge:
		return refuse("was changed" + anew)
	}
	return nil
}

// subject returns the subject of something stored: its kind is "k" for a lock and "w" for a waiter.
func (k *bucket) subject(kind, rest string) string { return "$KV." + k.root + kind + "." + rest }

// now is the server's clock. It needs no wall clock of this machine, which may leap.
func (k *bucket) now() time.Time { return k.at.Add(time.Since(k.seen)) }

// name returns a key as one token of a subject, percent-encoded: at most 1536 bytes.
func name(key string) string { return strings.ReplaceAll(url.QueryEscape(key), ".", "%2E") }
