package lua

import (
	"encoding/binary"
	"encoding/hex"
	"math/bits"
)

// sum returns the SHA-1 of a text, in hexadecimal: the name by which EVALSHA calls it. It protects
// nothing. Package crypto/sha1 panics in a process that may use only the algorithms of FIPS 140-3
// (GODEBUG=fips140=only). A server could name the text too, but only by loading it without the
// handshake, or by another round trip.
func sum(text string) string {
	h := [5]uint32{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}
	padded := append([]byte(text), 0x80)
	for len(padded)%64 != 56 {
		padded = append(padded, 0)
	}
	padded = binary.BigEndian.AppendUint64(padded, uint64(len(text))*8)
	for ; len(padded) > 0; padded = padded[64:] {
		var w [80]uint32
		for i := range 16 {
			w[i] = binary.BigEndian.Uint32(padded[4*i:])
		}
		for i := 16; i < len(w); i++ {
			w[i] = bits.RotateLeft32(w[i-3]^w[i-8]^w[i-14]^w[i-16], 1)
		}
		a, b, c, d, e := h[0], h[1], h[2], h[3], h[4]
		for i, word := range w {
			var f, k uint32
			switch i / 20 {
			case 0:
				f, k = b&c|^b&d, 0x5a827999
			case 1:
				f, k = b^c^d, 0x6ed9eba1
			case 2:
				f, k = b&c|b&d|c&d, 0x8f1bbcdc
			default:
				f, k = b^c^d, 0xca62c1d6
			}
			a, b, c, d, e = bits.RotateLeft32(a, 5)+f+e+k+word, a, bits.RotateLeft32(b, 30), c, d
		}
		for i, v := range []uint32{a, b, c, d, e} {
			h[i] += v
		}
	}
	var out []byte
	for _, v := range h {
		out = binary.BigEndian.AppendUint32(out, v)
	}
	return hex.EncodeToString(out)
}
