package redisnode

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// op names a script.
type op uint8

const (
	opAcquire op = iota
	opJoin
	opRenew
	opRelease
	opBreak
	opLookup
	opListen
	opBatch
	ops
)

var (
	//go:embed lua/hello.lua
	luaHello string
	//go:embed lua/look.lua
	luaLook string
	//go:embed lua/prelude.lua
	luaPrelude string
	//go:embed lua/handshake.lua
	luaHandshake string
	//go:embed lua/time.lua
	luaTime string
	//go:embed lua/counter.lua
	luaCounter string
	//go:embed lua/guard.lua
	luaGuard string
	//go:embed lua/raise.lua
	luaRaise string
	//go:embed lua/acquire.lua
	luaAcquire string
	//go:embed lua/join.lua
	luaJoin string
	//go:embed lua/renew.lua
	luaRenew string
	//go:embed lua/release.lua
	luaRelease string
	//go:embed lua/break.lua
	luaBreak string
	//go:embed lua/lookup.lua
	luaLookup string
	//go:embed lua/listen.lua
	luaListen string
	//go:embed lua/list.lua
	luaList string
	//go:embed lua/batch.lua
	luaBatch string
)

// body returns the text of a script without what stands before it. A line that names another
// text stands for that.
func (o op) body(guard string) string {
	text := [ops]string{luaAcquire, luaJoin, luaRenew, luaRelease, luaBreak, luaLookup, luaListen, luaBatch}[o]
	if o.perishable() {
		text = luaTime + guard + text
	}
	return strings.NewReplacer(
		"-- lua/counter.lua\n", luaCounter, "-- lua/raise.lua\n", luaRaise, "-- lua/time.lua\n", luaTime, "-- lua/guard.lua\n", guard,
	).Replace(text)
}

// perishable reports whether a script is refused when it comes too late.
func (o op) perishable() bool { return o <= opRenew }

// A script is a text as one server process knows it.
type script struct {
	text string
	sha  string
}

func newScript(text string) script {
	sum := sha1.Sum([]byte(text))
	return script{text: text, sha: hex.EncodeToString(sum[:])}
}

// bind returns the scripts for the process with this run_id. A server forgets its
// scripts when it restarts, and no other process has these texts, so that an
// EVALSHA that succeeds tells which process answered.
func bind(run string) [ops]script {
	var bound [ops]script
	for o := range ops {
		bound[o] = newScript("local RUN, GRACE, till = '" + run + "', 0, 0\n" + luaPrelude + o.body(""))
	}
	return bound
}

// bindGuarded returns those of them that depend on the server's memory, with the
// restart guard before them: for the process, for these terms, and for one space
// of keys. The space is in the text since a text is callable as soon as any handshake
// loaded it, and a handshake repairs the memory of its own space alone.
func bindGuarded(run, space, word string, t *driver.Terms) [ops]script {
	var bound [ops]script
	for _, o := range []op{opAcquire, opJoin, opRenew, opBatch} {
		text := fmt.Sprintf("-- for %s\nlocal RUN, TERMS, HEAD, VOTE, ALLOWANCE, GRACE = '%s', '%s', '%s %s/%s ', %t, %d, %d\n",
			space, run, word, metaLayout, run, word, o != opRenew, t.Allowance/time.Microsecond, inMS(t.Grace))
		bound[o] = newScript(text + luaHandshake + o.body(luaGuard))
	}
	return bound
}
