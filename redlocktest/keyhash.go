package redlocktest

import (
	"crypto/md5"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"hash/adler32"
	"hash/crc32"
	"hash/fnv"
	"maps"
	"math/bits"
	mathrand "math/rand/v2"
	"slices"
	"sync"

	"github.com/redlock-go/redlock/driver"
)

// hashes are functions that a driver could use to shorten a key to 32 bits.
var hashes = map[string]func([]byte) uint32{
	"CRC-32":                   crc32.ChecksumIEEE,
	"CRC-32C":                  func(b []byte) uint32 { return crc32.Checksum(b, castagnoli) },
	"Adler-32":                 adler32.Checksum,
	"FNV-1":                    func(b []byte) uint32 { h := fnv.New32(); _, _ = h.Write(b); return h.Sum32() },
	"FNV-1a":                   func(b []byte) uint32 { h := fnv.New32a(); _, _ = h.Write(b); return h.Sum32() },
	"Java's hashCode":          func(b []byte) (h uint32) { return polynomial(b, 31) },
	"djb2":                     djb2,
	"PostgreSQL's hashtext":    hashtext,
	"4 bytes of MD5":           func(b []byte) uint32 { h := md5.Sum(b); return binary.BigEndian.Uint32(h[:]) },
	"4 bytes of SHA-1":         func(b []byte) uint32 { h := sha1.Sum(b); return binary.BigEndian.Uint32(h[:]) },
	"4 bytes of SHA-256":       func(b []byte) uint32 { h := sha256.Sum256(b); return binary.BigEndian.Uint32(h[:]) },
	"the last 4 of SHA-256":    func(b []byte) uint32 { h := sha256.Sum256(b); return binary.BigEndian.Uint32(h[28:]) },
	"bytes 4 to 7 of SHA-256":  func(b []byte) uint32 { h := sha256.Sum256(b); return binary.BigEndian.Uint32(h[4:]) },
	"FNV-1a of 64 bits, cut":   func(b []byte) uint32 { h := fnv.New64a(); _, _ = h.Write(b); return uint32(h.Sum64()) },
	"FNV-1a of 64 bits, above": func(b []byte) uint32 { h := fnv.New64a(); _, _ = h.Write(b); return uint32(h.Sum64() >> 32) },
}

// hashNames returns the functions to try: in short runs the most likely one of each kind, because
// each search for a pair takes tens of milliseconds.
func hashNames(h *Harness) []string {
	if h.Short {
		return []string{"CRC-32", "FNV-1a", "PostgreSQL's hashtext", "4 bytes of SHA-256"}
	}
	return slices.Collect(maps.Keys(hashes))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Under the race detector the searches would take ten times as long: what they compute for each of
// a hundred thousand keys is left out of it.
//
//go:norace
func polynomial(b []byte, factor uint32) (h uint32) {
	for _, c := range b {
		h = h*factor + uint32(c)
	}
	return h
}

//go:norace
func djb2(b []byte) uint32 {
	h := uint32(5381)
	for _, c := range b {
		h = h*33 + uint32(c)
	}
	return h
}

// hashtext is PostgreSQL's function of that name: Bob Jenkins' lookup3 with the server's own
// first values.
//
//go:norace
func hashtext(k []byte) uint32 {
	a := 0x9e3779b9 + uint32(len(k)) + 3923095
	b, c := a, a
	word := func(i int) uint32 {
		var w [4]byte
		if i < len(k) {
			copy(w[:], k[i:])
		}
		return binary.LittleEndian.Uint32(w[:])
	}
	for ; len(k) >= 12; k = k[12:] {
		a, b, c = a+word(0), b+word(4), c+word(8)
		a -= c
		a ^= bits.RotateLeft32(c, 4)
		c += b
		b -= a
		b ^= bits.RotateLeft32(a, 6)
		a += c
		c -= b
		c ^= bits.RotateLeft32(b, 8)
		b += a
		a -= c
		a ^= bits.RotateLeft32(c, 16)
		c += b
		b -= a
		b ^= bits.RotateLeft32(a, 19)
		a += c
		c -= b
		c ^= bits.RotateLeft32(b, 4)
		b += a
	}
	a, b, c = a+word(0), b+word(4), c+word(8)<<8 // the lowest byte of c is for the length
	c ^= b
	c -= bits.RotateLeft32(b, 14)
	a ^= c
	a -= bits.RotateLeft32(c, 11)
	b ^= a
	b -= bits.RotateLeft32(a, 25)
	c ^= b
	c -= bits.RotateLeft32(b, 16)
	a ^= c
	a -= bits.RotateLeft32(c, 4)
	b ^= a
	b -= bits.RotateLeft32(a, 14)
	c ^= b
	c -= bits.RotateLeft32(b, 24)
	return c
}

// A pair is two keys with the same hash.
type pair struct{ one, two string }

// pairs caches the pairs that were found, by the hash's name and the prefix.
var pairs struct {
	sync.Mutex
	stem  string // how all of them begin in this process
	known map[[2]string]pair
}

// colliding returns two keys that have the same hash after prefix.
func colliding(name, prefix string) pair {
	pairs.Lock()
	defer pairs.Unlock()
	if pairs.known == nil {
		pairs.stem, pairs.known = "redlocktest/hash/"+rand.Text()[:8]+"/", map[[2]string]pair{}
	}
	p, found := pairs.known[[2]string{name, prefix}]
	if !found {
		p = collide(hashes[name], prefix, pairs.stem)
		pairs.known[[2]string{name, prefix}] = p
	}
	return p
}

// spell ends text with eight letters for n.
//
//go:norace
func spell(text []byte, n uint64) {
	const letters = "abcdefghijklmnopqrstuvwxyz234567"
	for i := range 8 {
		text[len(text)-8+i] = letters[n>>(5*i)&31]
	}
}

// collide searches for two keys with the same hash: among some ten thousand keys there is a pair.
//
//go:norace
func collide(hash func([]byte) uint32, prefix, stem string) pair {
	const slots = 1 << 18
	text := []byte(prefix + stem + "........")
	type slot struct {
		n    uint64
		hash uint32
	}
	seen := make([]slot, slots) // a later hash takes the place of an earlier one
	for {
		n := mathrand.Uint64N(1 << 40)
		spell(text, n)
		h := hash(text)
		s := &seen[h%slots]
		if s.hash == h && s.n != 0 && s.n != n {
			one := string(text[len(prefix):])
			spell(text, s.n)
			return pair{one, string(text[len(prefix):])}
		}
		*s = slot{n, h}
	}
}

// hashPrefixes returns the prefixes with which keys may be shortened.
func hashPrefixes(h *Harness) []string {
	prefixes := []string{h.Prefix}
	if h.Prefix != "" && !h.Short {
		prefixes = append(prefixes, "")
	}
	return prefixes
}

// findPairs finds the pairs of keyHashes, which takes seconds on a busy machine.
func findPairs(h *Harness) {
	for _, name := range hashNames(h) {
		for _, prefix := range hashPrefixes(h) {
			colliding(name, prefix)
		}
	}
}

// keyHashes locks pairs of keys that have the same 32-bit hash, of the key or of prefix and
// key.
func keyHashes(r *run) {
	a, b := r.pair()
	for _, name := range hashNames(r.h) {
		for _, prefix := range hashPrefixes(r.h) {
			p := colliding(name, prefix)
			l := r.grant(a, driver.Request{Key: p.one})
			other, err := r.try(b, driver.Request{Key: p.two})
			if r.saw(err) == held {
				r.fatal(requesting, "keys %q and %q are one lock: keys must not be cut to 32 bits (here %s): %v", p.one, p.two, name, err)
			}
			if err == nil {
				r.release(other)
			}
			r.release(l)
		}
	}
}
