package dsn

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

func TestEveryParameterIsAskedForOrNamed(t *testing.T) {
	p := Query("timeout=150ms&n=3&on=off&kind=b&name=a%26b")
	if d := p.Duration("timeout", 0, time.Millisecond); d != 150*time.Millisecond {
		t.Errorf("timeout = %v", d)
	}
	if n := p.Int("n", 0, 1, 9); n != 3 {
		t.Errorf("n = %d", n)
	}
	if p.Bool("on", true) {
		t.Error("on = true")
	}
	if k := p.Enum("kind", "a", "a", "b"); k != "b" {
		t.Errorf("kind = %q", k)
	}
	if s := p.String("absent", "def"); s != "def" {
		t.Errorf("absent = %q", s)
	}
	err := p.Err()
	var bad *driver.InvalidError
	if !errors.As(err, &bad) || bad.What != `parameter "name"` {
		t.Fatalf("an unasked parameter: got %v", err)
	}
	if s := p.String("name", ""); s != "a&b" {
		t.Errorf("name = %q", s)
	}
	if err := p.Err(); err != nil {
		t.Errorf("all asked for: %v", err)
	}
}

func TestBadValuesNameTheParameterAndNeverTheValue(t *testing.T) {
	const canary = "s3cr3t"
	for _, q := range []string{
		"d=" + canary, "d=1us", "i=" + canary, "i=10", "b=" + canary, "e=" + canary,
		"d=%zz" + canary, "d=1s&d=2s", "x=1@" + canary, "x#" + canary, "%2f" + canary + "=1", canary + "/=1",
	} {
		p := Query(q)
		p.Duration("d", 0, time.Millisecond)
		p.Int("i", 0, 1, 9)
		p.Bool("b", false)
		p.Enum("e", "x", "x", "y")
		err := p.Err()
		if !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%q: got %v, want ErrInvalid", q, err)
			continue
		}
		if strings.Contains(err.Error(), canary) {
			t.Errorf("%q: the error quotes the value: %v", q, err)
		}
	}
}
