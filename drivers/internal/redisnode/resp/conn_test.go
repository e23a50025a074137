package resp

import (
	"io"
	"net"
	"strings"
	"testing"
)

func TestWrongLengthsEndAConnection(t *testing.T) {
	fine := []string{
		"+OK\r\n", "-ERR no\r\n", ":1\r\n", "$-1\r\n", "*-1\r\n", "_\r\n", "#t\r\n", ",1.5\r\n", "(12345678901234567890\r\n",
		"$5\r\n\r\n$-5\r\n", "*2\r\n:1\r\n*1\r\n$1\r\nx\r\n", "%1\r\n+a\r\n*0\r\n", ">3\r\n+message\r\n$1\r\nx\r\n$0\r\n\r\n",
		"*0\r\n", "=7\r\ntxt:abc\r\n", "+" + strings.Repeat("x", 1000) + "\r\n", "*1000\r\n" + strings.Repeat(":1\r\n", 1000),
		strings.Repeat("*1\r\n", mostDepth) + ":1\r\n", "\n"[:0],
	}
	bad := []string{
		"$-5\r\n", "*-9\r\n", "$99999999999\r\n", "*99999999999\r\n", "$9999999999999999999999\r\n", "%-1\r\n", ">-2\r\n", "$x\r\n", "$\r\n",
		"$5\n", "$+5\r\n", "$?\r\n", "*?\r\n", ";4\r\n", "|1\r\n", "HTTP/1.1 400 Bad Request\r\n", "_x$99999999999\r\n", "#x\r\n", "\r\n", "\n",
		strings.Repeat("*1\r\n", mostDepth+1), "*1000000\r\n*1000000\r\n", "%9000000000\r\n", "+" + strings.Repeat("x", mostLine) + "\r\n",
	}
	whole := strings.Join(fine, "")
	for step := 1; step < 20; step++ {
		var s scanner
		for rest := whole; rest != ""; rest = rest[min(step, len(rest)):] {
			s.begun = 0
			if !s.scan([]byte(rest[:min(step, len(rest))]), 0) {
				t.Fatalf("%d bytes at a time: stopped %d bytes before the end", step, len(rest))
			}
		}
		if len(s.open) > 0 || s.all != 0 || s.skip > 0 {
			t.Errorf("it is not at the end: %+v", s)
		}
	}
	for _, text := range bad {
		for _, step := range []int{1, 3, len(text)} {
			var s scanner
			_ = s.scan([]byte("+OK\r\n"), 0)
			ok := true
			for rest := text; rest != ""; rest = rest[min(step, len(rest)):] {
				s.begun = 0
				ok = s.scan([]byte(rest[:min(step, len(rest))]), 0)
			}
			if ok {
				t.Errorf("%.20q is taken for a reply", text)
			}
		}
	}
}

// A secret is hidden in error replies, and nowhere else.
func TestErrorRepliesShowNoSecret(t *testing.T) {
	const sent = "-ERR unknown command 'AUTH', with args: 's3c' 's3c'\r\n$3\r\ns3c\r\n+s3c\r\n*2\r\n-s3c s3c\r\n:3\r\n"
	want := strings.NewReplacer("'s3c'", "'***'", "-s3c s3c", "-s3c ***").Replace(sent)
	for step := 1; step <= len(sent); step++ {
		in, out := net.Pipe()
		go func() {
			for rest := sent; rest != ""; rest = rest[min(step, len(rest)):] {
				_, _ = out.Write([]byte(rest[:min(step, len(rest))]))
			}
			_ = out.Close()
		}()
		got, err := io.ReadAll(New("", "s3c").Check(in))
		if err != nil || string(got) != want {
			t.Fatalf("%d bytes at a time: %q, %v", step, got, err)
		}
	}
}
