// Package memory has the texts of the restart guard: what a server remembers, what a handshake
// says, and why a server does not vote. lua/guard.lua and lua/handshake.lua are the server's side.
package memory

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
)

// EncodeTerms encodes terms like the server: see lua/guard.lua.
func EncodeTerms(t *quorum.Terms) string {
	us := func(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }
	return fmt.Sprintf("%d/%d/%d/%d/%d/%d/%d", t.N, us(t.Guard), us(t.Excuse), us(t.Allowance), us(t.Quarantine), us(t.Grace), t.Drift)
}

// ParseTerms decodes the result of EncodeTerms.
func ParseTerms(encoded string) (quorum.Terms, bool) {
	var n [7]int64
	fields := strings.Split(encoded, "/")
	if len(fields) != len(n) {
		return quorum.Terms{}, false
	}
	for i, f := range fields {
		var err error
		if n[i], err = strconv.ParseInt(f, 10, 64); err != nil || n[i] < 0 || n[i] > 1<<53 {
			return quorum.Terms{}, false
		}
	}
	us := func(i int) time.Duration { return time.Duration(n[i]) * time.Microsecond }
	return quorum.Terms{N: int(n[0]), Guard: us(1), Excuse: us(2), Allowance: us(3), Quarantine: us(4), Grace: us(5), Drift: int(n[6])}, true
}

// Terms returns the encoded terms in a server's memory.
func Terms(meta string) (terms string) {
	fields := strings.Split(meta, " ")
	if len(fields) < 5 || fields[0] != lua.MetaLayout {
		return ""
	}
	_, terms, _ = strings.Cut(fields[1], "/")
	return terms
}

// HandshakeArgs returns the arguments of a handshake. Until the time until, by its clock, the
// server may count as new.
func HandshakeArgs(q *quorum.Info, mode string, until int64) []string {
	others := int64(0)
	if q.N > 1 {
		others = -1
		if q.OtherClocks != nil {
			if t := q.OtherClocks(); !t.IsZero() {
				others = t.UnixMicro()
			}
		}
	}
	i := func(n int64) string { return strconv.FormatInt(n, 10) }
	return []string{"handshake", i(others), mode, i(until), EncodeTerms(q.Proposal())}
}

// Pending is the end of a quarantine that has not begun, because the other nodes' clocks were
// unknown.
const Pending = 9007199254740991

// InQuarantine says why a server does not vote, for how long, and what an operator can do.
func InQuarantine(why string, till, now int64) string {
	what, fix := "the server is in quarantine", ""
	switch why {
	case "restart":
		what = "the server was restarted, or another took its place"
	case "new":
		what = "the server is new, or has lost its memory"
		fix = " (dlock bootstrap before the first client, or bootstrap=true, spares new servers this)"
	case "changed", "nodes": // as an earlier release says
		what = "the nodes or their terms were changed"
	case "clock":
		what = "the server's clock was set back"
	}
	if till == Pending {
		return "restart guard: no vote until the clocks and the terms of the other nodes are known, since " + what
	}
	left := (time.Duration(till-now) * time.Microsecond).Round(100 * time.Millisecond)
	return fmt.Sprintf("restart guard: no vote for another %v, since %s%s", left, what, fix)
}

// Report adds the terms of meta to r.
func Report(r *quorum.MemoryReport, meta string) {
	if t, ok := ParseTerms(Terms(meta)); ok {
		r.Terms = &t
	}
}

// Modes are a handshake's names for the statements.
var Modes = map[quorum.Statement]string{quorum.StateNew: "bootstrap", quorum.StateChanged: "changed"}
