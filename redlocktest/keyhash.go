package redlocktest

import (
	"crypto/fips140"
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"hash/fnv"
	"math/bits"
	"slices"
	"sync"

	"github.com/redlock-go/redlock/driver"
)

// hashes are functions with which drivers shorten a key to 32 bits. They protect nothing here: the
// suite searches for keys that such a driver would take for one.
var hashes = map[string]func([]byte) uint32{
	"CRC-32":                crc32.ChecksumIEEE,
	"FNV-1a":                func(b []byte) uint32 { h := fnv.New32a(); _, _ = h.Write(b); return h.Sum32() },
	"PostgreSQL's hashtext": hashtext,
	"4 bytes of MD5":        func(b []byte) uint32 { h := md5.Sum(b); return binary.BigEndian.Uint32(h[:]) },
	"4 bytes of SHA-256":    func(b []byte) uint32 { h := sha256.Sum256(b); return binary.BigEndian.Uint32(h[:]) },
}

// hashtext is PostgreSQL's function of that name: Bob Jenkins' lookup3 with the server's own
// first values. Under the race detector the searches would take ten times as long, so it and
// collide are left out of it.
//
//go:norace
func hashtext(k []byte) uint32 {
	start := 0x9e3779b9 + uint32(len(k)) + 3923095
	v := [3]uint32{start, start, start}
	word := func(i int) uint32 {
		var w [4]byte
		if i < len(k) {
			copy(w[:], k[i:])
		}
		return binary.LittleEndian.Uint32(w[:])
	}
	for ; len(k) >= 12; k = k[12:] {
		v[0], v[1], v[2] = v[0]+word(0), v[1]+word(4), v[2]+word(8)
		for i, n := range [6]int{4, 6, 8, 16, 19, 4} { // mix
			x, y, z := &v[i%3], &v[(i+1)%3], &v[(i+2)%3]
			*x -= *z
			*x ^= bits.RotateLeft32(*z, n)
			*z += *y
		}
	}
	v[0], v[1], v[2] = v[0]+word(0), v[1]+word(4), v[2]+word(8)<<8 // the lowest byte of c is for the length
	for i, n := range [7]int{14, 11, 25, 16, 4, 14, 24} {          // final
		x, y := &v[(i+2)%3], &v[(i+1)%3]
		*x ^= *y
		*x -= bits.RotateLeft32(*y, n)
	}
	return v[2]
}

// A pair is two keys with the same hash.
type pair struct{ one, two string }

// pairs has the pairs that were found, by the hash's name and the prefix: a search takes tens of
// milliseconds.
var pairs sync.Map

// colliding returns two keys that have the same hash after prefix.
func colliding(name, prefix string) pair {
	id := [2]string{name, prefix}
	if found, ok := pairs.Load(id); ok {
		return found.(pair)
	}
	found, _ := pairs.LoadOrStore(id, collide(hashes[name], prefix, "redlocktest/hash/"+rand.Text()[:8]+"/"))
	return found.(pair)
}

// collide searches for two keys with the same hash: among some ten thousand keys there is a pair.
//
//go:norace
func collide(hash func([]byte) uint32, prefix, stem string) pair {
	const slots, letters = 1 << 17, "abcdefghijklmnopqrstuvwxyz234567"
	text := []byte(prefix + stem + "........")
	spell := func(n uint32) []byte { // ends the text with eight letters for n, and returns the key
		spread := uint64(n) * 0x9e3779b97f4a7c15 >> 24 // a CRC differs for texts that differ in 32 bits in a row
		for i := range 8 {
			text[len(text)-8+i] = letters[spread>>(5*i)&31]
		}
		return text[len(prefix):]
	}
	type slot struct{ n, hash uint32 } // small, so that all stay in a processor's cache
	seen := make([]slot, slots)        // a later hash takes the place of an earlier one
	for n := uint32(1); ; n++ {
		spell(n)
		h := hash(text)
		s := &seen[h%slots]
		if s.hash == h && s.n != 0 {
			one := string(spell(n))
			return pair{one, string(spell(s.n))}
		}
		*s = slot{n, h}
	}
}

// keyHashes locks pairs of keys that have the same 32-bit hash, of the key or of prefix and
// key.
func keyHashes(r *run) {
	a, b := r.pair()
	for name := range hashes {
		if name == "4 bytes of MD5" && fips140.Enabled() { // where MD5 may be forbidden, no driver uses it
			continue
		}
		for _, prefix := range slices.Compact([]string{"", r.h.Prefix}) {
			p := colliding(name, prefix)
			l := r.grant(a, driver.Request{Key: p.one})
			r.release(r.takes(requesting, b, p.two, "keys %q and %q are one lock: keys must not be cut to 32 bits (here %s)", p.one, p.two, name))
			r.release(l)
		}
	}
}
