// Package lua has the scripts that run on a server, and binds their texts to one server process.
// Each script names its KEYS and ARGV in its head.
package lua

import (
	"embed"
	"fmt"
	"regexp"
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

//go:embed *.lua
var files embed.FS

// file returns the text of a script, or of a part of scripts.
func file(name string) string {
	text, err := files.ReadFile(name + ".lua")
	if err != nil {
		panic(err) // a script names a part that is not there
	}
	return string(text)
}

// The texts that are not bound to a server process.
var Hello, Look, List = file("hello"), file("look"), file("list")

// part is a line that stands for another text.
var part = regexp.MustCompile(`-- lua/(\w+)\.lua\n`)

// body returns the text of a script without the texts before it.
func (o Op) body(guard string) string {
	text := file([Ops]string{"acquire", "join", "acquire_shared", "join_shared", "renew_shared", "renew", "release", "release_shared", "lookup", "listen", "batch"}[o])
	if o.Perishable() {
		text = file("time") + guard + text
	}
	return code(part.ReplaceAllStringFunc(text, func(line string) string {
		if name := part.FindStringSubmatch(line)[1]; name != "guard" {
			return file(name)
		}
		return guard
	}))
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
		bound[o] = New("local RUN, GRACE, QUARANTINE, till = '" + run + "', 0, math.huge, 0\n" + code(file("prelude")) + o.body(""))
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
		bound[o] = New(text + code(file("handshake")) + o.body(file("guard")))
	}
	return bound
}

// MetaLayout is the layout of the server's memory, with which it begins. An error names any other
// layout.
const MetaLayout = "2"
