package redlocktest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redlock-go/redlock/dlock"
)

// FuzzURL opens what may follow a password in a URL: no driver crashes, and none quotes it.
func FuzzURL(f *testing.F) {
	for _, rest := range []string{"host:1/0", "host:notaport", "[::1", "host:1/%zz", "ho st:1/", "host:1/?a=1;b=2", "host:1/?%zz", "host/\x7f", ",b:2?ttl=-1s", "@@host"} {
		f.Add(uint8(0), rest)
		f.Add(uint8(1), rest)
		f.Add(uint8(2), rest)
		f.Add(uint8(3), rest)
	}
	f.Fuzz(func(t *testing.T, scheme uint8, rest string) {
		const secret = "pw-c4n4ry"
		before := []string{"redis://", "valkeys://", "postgres://", "redlock:redis://"}[scheme%4]
		b, err := dlock.OpenBackend(before + "user:" + secret + "@" + rest)
		said := fmt.Sprintf("%v %+v", err, err)
		if err == nil {
			said = fmt.Sprintf("%v %+v", b, b.Info())
			if err := b.Close(); err != nil {
				said += err.Error()
			}
		}
		if strings.Contains(said, secret) && !strings.Contains(rest, secret) {
			t.Errorf("%q: %s", before+"user:…@"+rest, said)
		}
	})
}
