package redisnode

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
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
	ops
)

var (
	//go:embed lua/hello.lua
	luaHello string
	//go:embed lua/prelude.lua
	luaPrelude string
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
)

// body returns the text of a script without what binds it to a process.
func (o op) body() string {
	return [ops]string{luaAcquire, luaJoin, luaRenew, luaRelease, luaBreak, luaLookup}[o]
}

// A script is a text as one server process knows it.
type script struct {
	text string
	sha  string
}

// bind returns the scripts for the process with this run_id. A server forgets its
// scripts when it restarts, and no other process has these texts, so that an
// EVALSHA that succeeds tells which process answered.
func bind(run string) [ops]script {
	var bound [ops]script
	for o := range ops {
		text := "local RUN = '" + run + "'\n" + luaPrelude + o.body()
		sum := sha1.Sum([]byte(text))
		bound[o] = script{text: text, sha: hex.EncodeToString(sum[:])}
	}
	return bound
}
