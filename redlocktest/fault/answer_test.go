package fault_test

import (
	"slices"
	"testing"

	"github.com/redlock-go/redlock/redlocktest/fault"
)

// TestOnlyAnswersToEffectiveRequestsAreLost: messages that say nothing of an effect pass, and the
// next answer is lost, however the bytes arrive.
func TestOnlyAnswersToEffectiveRequestsAreLost(t *testing.T) {
	const headers, data, endStream, endHeaders = "\x01", "\x00", "\x01", "\x04"
	frame := func(kind, flags string) string { return "\x00\x00\x01" + kind + flags + "\x00\x00\x00\x01x" }
	for name, of := range map[string]struct {
		protocol fault.Protocol
		pass     string
		answer   string
	}{
		"RESP: an error":               {fault.ProtocolRESP, "-NOSCRIPT No matching script.\r\n", ":1\r\n"},
		"RESP: a long error":           {fault.ProtocolRESP, "!8\r\nLOADING \r\n", ":1\r\n"},
		"HTTP2: the end of a response": {fault.ProtocolHTTP2, frame(data, "\x00") + frame(headers, "\x05"), frame(headers, endHeaders)},
		"HTTP2: a response of an end":  {fault.ProtocolHTTP2, frame(headers, endStream) + frame(data, "\x00"), frame(headers, "\x00")},
		"MySQL: a login":               {fault.ProtocolMySQL, "\x01\x00\x00\x00\x0a\x07\x00\x00\x02\x00\x00\x00\x02\x00\x00\x00", "\x01\x00\x00\x01\x01"},
		"MySQL: rows":                  {fault.ProtocolMySQL, "\x01\x00\x00\x04x\x05\x00\x00\x05\xfe\x00\x00#\x00", "\x01\x00\x00\x01\x01"},
		"MySQL: an error":              {fault.ProtocolMySQL, "\x09\x00\x00\x01\xff\x28\x04#42000", "\x07\x00\x00\x01\x00\x01\x00\x02\x00\x00\x00"},
		"MySQL: a preparation": {fault.ProtocolMySQL, "\x0c\x00\x00\x01\x00\x01\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00",
			"\x07\x00\x00\x01\x00\x01\x00\x02\x00\x00\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			all := []byte(of.pass + of.answer)
			for size := 1; size <= len(all); size++ {
				judge, passed := fault.LoseAnswer(of.protocol, fault.Cut), 0
				for chunk := range slices.Chunk(all, size) {
					n, then := judge(1, chunk)
					if passed += n; then == fault.Cut {
						break
					}
				}
				if passed < len(of.pass) || passed == len(all) {
					t.Errorf("in chunks of %d: %d bytes pass, of %d before the answer and %d in all", size, passed, len(of.pass), len(all))
				}
			}
		})
	}
}

// TestAnAnswerIsLostAfterTheRestOfALongMessage: a judge that begins in the middle of a message takes
// its rest for the beginning of a message that may never end. It begins anew after a bounded size.
func TestAnAnswerIsLostAfterTheRestOfALongMessage(t *testing.T) {
	for name, of := range map[string]struct {
		protocol     fault.Protocol
		rest, answer string
	}{
		"RESP":     {fault.ProtocolRESP, "*999999999\r\n", ":1\r\n"},
		"HTTP2":    {fault.ProtocolHTTP2, "\xff\xff\xff\x01\x04", "\x00\x00\x01\x01\x04\x00\x00\x00\x01x"},
		"Postgres": {fault.ProtocolPostgres, "C\x7f\xff\xff\xff", "C\x00\x00\x00\x0dINSERT 0\x00"},
		"MySQL":    {fault.ProtocolMySQL, "\xff\xff\xff\x01\x00", "\x01\x00\x00\x01\x01"},
	} {
		judge := fault.LoseAnswer(of.protocol, fault.Cut)
		judge(1, []byte(of.rest))
		passed, then := 0, fault.Pass
		for then == fault.Pass && passed < 64<<10 {
			var n int
			n, then = judge(1, []byte(of.answer))
			passed += n
		}
		if then != fault.Cut {
			t.Errorf("%s: no answer is lost in %d bytes", name, passed)
		}
	}
}
