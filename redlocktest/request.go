package redlocktest

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
)

var requestCases = []testCase{
	{name: "misuse", do: misuses},
	{name: "long-key", do: longKey},
	{name: "odd-keys", do: oddKeys},
	{name: "key-hashes", do: keyHashes},
	{name: "ttl-bounds", ttl: true, do: ttlBounds},
	{name: "renewal-ttl-bounds", ttl: true, do: renewalBounds},
	{name: "reuse", do: reuse},
}

func (r *run) refusedRequest(req driver.Request, what, detail string) {
	_, err := r.client().Acquire(r.ctx, &req)
	r.misuse(err, what, detail)
}

// misuses checks that what a backend cannot honour is refused, by its name.
func misuses(r *run) {
	key, owner, ttl := r.key(), r.owner(), r.long()
	r.refusedRequest(driver.Request{Owner: owner, TTL: ttl}, "key", "an empty key")
	r.refusedRequest(driver.Request{Key: key, TTL: ttl}, "owner", "an empty owner")
	for _, mode := range []driver.Mode{driver.Shared + 1, 7, math.MaxUint8} {
		r.refusedRequest(driver.Request{Key: key, Owner: owner, TTL: ttl, Mode: mode}, "mode", fmt.Sprintf("mode %d", mode))
	}
	if !r.info.Features.Has(driver.FeatureShared) {
		r.refusedRequest(driver.Request{Key: key, Owner: owner, TTL: ttl, Mode: driver.Shared}, "mode", "shared mode")
	}
	if r.info.MaxTTL == 0 {
		r.refusedRequest(driver.Request{Key: key, Owner: owner, TTL: time.Second}, "TTL", "an explicit TTL")
	}
	if !r.info.Features.Has(driver.FeatureQuorumNode) {
		r.refusedRequest(driver.Request{Key: key, Owner: owner, TTL: ttl, ExactFence: 1}, "", "Join")
		r.refusedRequest(driver.Request{Key: key, Owner: owner, TTL: ttl, Quorum: &quorum.Info{Terms: quorum.Terms{N: 3}}}, "", "Quorum")
	}
	r.release(r.grant(r.client(), driver.Request{Key: key}))
}

// longKey also takes two keys of the greatest length that differ only in the last byte: a
// driver that cuts keys would take them for one.
func longKey(r *run) {
	a, b := r.pair()
	most := driver.MaxKey - len(r.h.Prefix)
	stem := r.key()
	stem += strings.Repeat("k", most-1-len(stem))
	one := r.grant(a, driver.Request{Key: stem + "1"})
	two := r.takes(requesting, b, stem+"2", "two keys of %d bytes that differ in the last one are one lock", most)
	r.refuse(b, driver.Request{Key: stem + "1"}, one)
	r.release(one)
	r.release(two)
	for _, n := range []int{most + 1, 2 * driver.MaxKey} {
		req := driver.Request{Key: stem + strings.Repeat("x", n-len(stem)), Owner: r.owner(), TTL: r.long()}
		r.refusedRequest(req, "key", fmt.Sprintf("a key of %d bytes", n))
	}
}

// odd returns keys that a layer between the client and the server may misread. All are
// different, and contain key.
func odd(key string) []string {
	return []string{
		key, key + "x", key + "/", key + "//", key + "/x", // one the prefix of another
		key + "a", key + "A", // file names without case
		key + "\u00e9", key + "e\u0301", // é in one piece and in two: the same to some file systems
		key + " ", " " + key, key + "  ", key + "\t", key + "\n", "\n" + key, key + "\r\n",
		key + "\x00", "\x00" + key, key + "\x00x",
		key + "*", "*" + key, key + "?", key + "[a]", key + "\\", key + "\\*",
		"{" + key, key + "}", "{}" + key, "{" + key + "}", "{" + key + "}x", key + "{x}", // hash tags
		"../" + key, "./" + key, "/" + key, key + "/..", key + "/.", key + ".lock",
		key + "%", key + "%00", key + "%s", key + "%2F", key + ":", key + "|1", key + "'", key + `"`, key + "; DROP TABLE locks",
		key + "\xff\xfe", key + "\xff", key + "\u65e5\u672c\u8a9e", key + "\U0001f512", key + "\u202e",
		key + "#", key + "?x=1", key + "&", "-" + key, "~" + key, "$" + key,
	}
}

func oddKeys(r *run) {
	a, b := r.pair()
	keys := odd(r.key())
	leases := make([]*lease, len(keys))
	for i, key := range keys {
		leases[i] = r.grantOdd(a, key)
	}
	for i, key := range keys {
		r.refuse(b, driver.Request{Key: key}, leases[i])
	}
	for i, key := range keys {
		r.release(leases[i])
		r.release(r.grantOdd(b, key))
	}
}

// grantOdd is grant, but reports the rule on keys if the key is taken for another one.
func (r *run) grantOdd(b driver.Backend, key string) *lease {
	l, err := r.try(b, driver.Request{Key: key})
	switch v := r.saw(err); v {
	case granted:
		return l
	case held:
		r.fatal(requesting, "key %q is taken for another one: %v", key, err)
	case invalid, refused:
		r.fatal(requesting, "key %q is refused: %v", key, err)
	}
	return r.grant(b, driver.Request{Key: key})
}

// outOfBounds returns TTLs just outside the bounds, and some far outside.
func (r *run) outOfBounds() []time.Duration {
	ttls := []time.Duration{-time.Second, -1, 0, 1, r.info.MinTTL - 1}
	if r.info.MaxTTL < math.MaxInt64 {
		ttls = append(ttls, r.info.MaxTTL+1, math.MaxInt64)
	}
	return ttls
}

func ttlBounds(r *run) {
	key := r.key()
	for _, ttl := range r.outOfBounds() {
		req := driver.Request{Key: key, Owner: r.owner(), TTL: ttl}
		r.refusedRequest(req, "TTL", fmt.Sprintf("a TTL of %v (bounds: %v to %v)", ttl, r.info.MinTTL, r.info.MaxTTL))
	}
	r.release(r.grant(r.client(), driver.Request{Key: key, TTL: r.info.MaxTTL}))
}

func renewalBounds(r *run) {
	key := r.key()
	l := r.grant(r.client(), driver.Request{Key: key})
	for _, ttl := range r.outOfBounds() {
		_, err := l.Renew(r.ctx, &driver.Renewal{TTL: ttl})
		r.misuse(err, "TTL", fmt.Sprintf("a renewal for %v (bounds: %v to %v)", ttl, r.info.MinTTL, r.info.MaxTTL))
	}
	r.holds(r.client(), key, l)
	r.release(l)
}

// reuse overwrites the request after Acquire, and checks that the lease does not change.
func reuse(r *run) {
	a, b := r.pair()
	key, other := r.key(), r.key()
	req := r.fill(driver.Request{Key: key})
	l, err := r.tryRequest(r.ctx, a, req)
	for err != nil && r.doubtful(key) && r.pause(poll) {
		req = r.fill(driver.Request{Key: key})
		l, err = r.tryRequest(r.ctx, a, req)
	}
	if err != nil {
		r.fatal(acquiring, "a free key was not granted: %v", err)
	}
	*req = driver.Request{Key: other, Owner: r.owner(), TTL: req.TTL}
	bystander := r.grant(b, driver.Request{Key: other})
	r.renew(l, driver.Renewal{})
	r.holds(b, key, l)
	r.release(l)
	r.free(b, key)
	r.holds(a, other, bystander)
}
