package lua

import (
	"crypto/sha1"
	"encoding/hex"
	"strings"
	"testing"
)

func TestATextHasTheNameThatServersGiveIt(t *testing.T) {
	for n := range 200 {
		text := strings.Repeat("local x ", n)[:n]
		want := sha1.Sum([]byte(text))
		if got := sum(text); got != hex.EncodeToString(want[:]) {
			t.Fatalf("%d bytes: %s, want %x", n, got, want)
		}
	}
}

func BenchmarkBind(b *testing.B) {
	for b.Loop() {
		Bind("0123456789012345678901234567890123456789")
	}
}
