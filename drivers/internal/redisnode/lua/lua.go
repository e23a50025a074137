// Package lua has the scripts that run on a server, and binds their texts to one server process.
// Each script names its KEYS and ARGV in its head.
package lua

import (
	_ "embed"
	"fmt"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver/quorum"
)

// An Op names a script.
type Op uint8

// The scripts that are bound to a server process. Ops is their number.
const (
	Acquire Op = iota
	Join
	AcquireShared
	JoinShared
	RenewShared
	Renew
	Release
	ReleaseShared
	Lookup
	Listen
	Batch
	Ops
)

// The texts that are not bound to a server process, and the beginning of those with a restart guard.
var (
	//go:embed hello.lua
	Hello string
	//go:embed look.lua
	Look string
	//go:embed list.lua
	List string
	//go:embed handshake.lua
	Handshake string
)

var (
	//go:embed prelude.lua
	preludeText string
	//go:embed time.lua
	timeText string
	//go:embed counter.lua
	counterText string
	//go:embed guard.lua
	guardText string
	//go:embed keep_counter.lua
	keepCounterText string
	//go:embed correct_token.lua
	correctTokenText string
	//go:embed acquire.lua
	acquireText string
	//go:embed join.lua
	joinText string
	//go:embed join_counter.lua
	joinCounterText string
	//go:embed join_shared.lua
	joinSharedText string
	//go:embed readers.lua
	readersText string
	//go:embed acquire_shared.lua
	acquireSharedText string
	//go:embed renew_shared.lua
	renewSharedText string
	//go:embed renew.lua
	renewText string
	//go:embed hand_over.lua
	handOverText string
	//go:embed release.lua
	releaseText string
	//go:embed release_shared.lua
	releaseSharedText string
	//go:embed lookup.lua
	lookupText string
	//go:embed listen.lua
	listenText string
	//go:embed batch.lua
	batchText string
)

// body returns the text of a script without the texts before it. A line that names another text
// is replaced by that text.
func (o Op) body(guard string) string {
	text := [Ops]string{acquireText, joinText, acquireSharedText, joinSharedText, renewSharedText, renewText, releaseText, releaseSharedText, lookupText, listenText, batchText}[o]
	if o.Perishable() {
		text = timeText + guard + text
	}
	return code(strings.NewReplacer(
		"-- lua/counter.lua\n", counterText, "-- lua/keep_counter.lua\n", keepCounterText, "-- lua/join_counter.lua\n", joinCounterText, "-- lua/correct_token.lua\n", correctTokenText,
		"-- lua/readers.lua\n", readersText, "-- lua/hand_over.lua\n", handOverText, "-- lua/time.lua\n", timeText, "-- lua/guard.lua\n", guard,
	).Replace(text))
}

// code returns a text without indentation and without lines of comment, because a server keeps it
// once for each prefix with a guard.
func code(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimLeft(line, " "); !strings.HasPrefix(line, "--") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Perishable reports whether a script refuses late calls.
func (o Op) Perishable() bool { return o <= Renew }

// A Script is a text that is bound to one server process.
type Script struct {
	Text string
	SHA  string
}

// New returns the script with this text.
func New(text string) Script {
	return Script{Text: text, SHA: sum(text)}
}

// Bind returns the scripts for the process with this run_id. A server forgets its scripts when
// it restarts, and no other process has these texts, so an EVALSHA that succeeds proves which
// process answered.
func Bind(run string) [Ops]Script {
	var bound [Ops]Script
	for o := range Ops {
		bound[o] = New("local RUN, GRACE, QUARANTINE, till = '" + run + "', 0, math.huge, 0\n" + code(preludeText) + o.body(""))
	}
	return bound
}

// BindGuarded returns the scripts that depend on the server's memory, with the restart guard
// before them: for the process, these terms, and one space of keys. The space is in the text
// because a text is callable as soon as any handshake has loaded it, and a handshake repairs
// only the memory of its own space.
func BindGuarded(run, space, encoded string, t *quorum.Terms) [Ops]Script {
	var bound [Ops]Script
	for _, o := range []Op{Acquire, Join, AcquireShared, JoinShared, RenewShared, Renew, Batch} {
		text := fmt.Sprintf("-- for %s\nlocal RUN, TERMS, HEAD, VOTE, ALLOWANCE, GRACE, QUARANTINE = '%s', '%s', '%s %s/%s ', %t, %d, %d, %d\n",
			space, run, encoded, MetaLayout, run, encoded, o != Renew && o != RenewShared, t.Allowance/time.Microsecond, (t.Grace+time.Millisecond-1)/time.Millisecond, t.Quarantine/time.Microsecond)
		bound[o] = New(text + code(Handshake) + o.body(guardText))
	}
	return bound
}

// MetaLayout is the layout of the server's memory, with which it begins. An error names any other
// layout.
const MetaLayout = "2"
