package lua_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// states are what the lock, the counter and the queue of a call may hold before it, as in
// testdata/scripts.txt; # is the call's number.
var states = []string{
	"", "set c# now-30000000 PX 130000", "set c# now-1000 PX 130000", "set c# now", "set c# now+400000 PX 300000", "set c# now+100000000 PX 300000",
	"set c# 9007199254740991", "set c# odd", "set c# 17.5", "rpush c# x",
	"set l# a/#|now-5000 PX 500000", "set l# a/#|now-5000 PX 500000\nset c# now-5000 PX 130000",
	"set l# a/#|now-5000 PX 500000\nzadd q# now-2000 b.1.30000", "set l# a/#|now-5000 PX 500000\nzadd q# 9007199254740991 b.0.0", "set l# a/#|now-5000 PX 500000\nset q# odd",
	"zadd q# now-2000 b.2.30000", "set l# redlock1:next|now-9000|b.3.30 PX 500000", "set l# f0reign PX 500000", "set l# x*1500", "rpush l# x", "set l# o/#|now-7000 PX 500000",
}

// faults are what may be refused meanwhile; 1 is the number of a call.
var faults = []string{
	"", "", "", "fail MGET 'NOPERM no'", "fail EXISTS 'NOPERM no'", "fail PTTL 'NOPERM no'", "fail 'DEL l1' 'NOPERM no'", "fail 'DEL ' 'NOPERM no'",
	"fail 'SET l1' 'OOM full'", "fail 'SET c1' 'OOM full'", "fail 'SET mark' 'OOM full'", "fail ZPOPMIN 'NOPERM no'", "fake 'PUBLISH free:' 1",
	"set mark 'now+1 now+2 now+3'", "set mark 'now+10000001 now+2 now+3'", "set mark 'now-9 now-8 now+90000000'", "set mark odd",
}

// together runs the calls of a round in a batch, with those that it leaves alone singly behind it, or
// all singly. Each result is a text.
const together = `
local function told(i, r)
  local x = proposed[i]
  if type(r) == 'table' and r.err then return 'error ' .. r.err end
  if not x then return 'release ' .. r end
  if type(r) == 'number' then
    if x == 0 then return 'granted ' .. string.format('%.0f', r) end
    local behind = math.floor(r / 4194304)
    return string.format('granted %.0f before ', x) .. (behind > 0 and string.format('%.0f', x - behind) or '')
  end
  if r[1] == 1 then return string.format('granted %.0f', r[2]) .. (r[4] and ' before ' .. r[4] or '') end
  for k = 1, #r do if type(r[k]) == 'number' then r[k] = string.format('%.0f', r[k]) end end
  return table.concat(r, ' ')
end
local function singly(i)
  local fine, r = pcall(single[i])
  return fine and told(i, r) or 'error ' .. (type(r) == 'table' and r.err or tostring(r))
end
local results = {}
for i = 1, #single do results[i] = not batch and singly(i) or proposed[i] and string.format('granted %.0f', proposed[i] == 0 and now or proposed[i]) or 'release 1' end
if batch then
  local fine, r = pcall(batch)
  if not fine or type(r) == 'table' and r.err then r = {0, 0} for i = 1, #single do r[3 * i], r[3 * i + 1], r[3 * i + 2] = i, -5, 0 end end
  if type(r) == 'number' then r = {0, 0} end
  if type(r[2]) == 'table' then for i in pairs(proposed) do results[i] = told(i, r[2]) end end
  for j = 3, #r, 3 do
    local i, what, more = r[j], r[j + 1], r[j + 2]
    if type(what) == 'string' then results[i] = '0 ' .. what .. ' ' .. more .. ' ' .. string.format('%.0f', now)
    elseif what > 0 then results[i] = string.format('granted %.0f before ', what) .. more
    elseif what == 0 then results[i] = 'release 0'
    elseif what == -6 then results[i] = 'error ' .. more
    else results[i] = singly(i) end
  end
end
for i, result in ipairs(results) do said[#said + 1] = i .. ': ' .. result end
return #results
`

// draw makes a round: its state, and the text of its calls, first in a batch and then singly.
func draw(r *rand.Rand, texts map[string]string) (given string, both [2]string) {
	prefix, meta, lines := "", "", []string{faults[r.IntN(len(faults))]}
	if r.IntN(2) == 0 {
		prefix, meta = "guarded-", " meta"
		lines = append(lines, "set meta '2 ab/TERMS 0 now - x'")
	}
	late, proposes := "now", r.IntN(2) == 0
	if r.IntN(10) == 0 {
		late = "now-1"
	}
	releases, acquires := r.IntN(4), 1+r.IntN(4)
	if r.IntN(4) == 0 {
		releases, acquires = acquires, 0
	}
	var locks, beside, values, tokens []string
	calls := fmt.Sprintf("local now, single, proposed, batch = %d, {}, {}, nil\n", int64(now))
	function := func(name, script, keys, args string) string {
		return fmt.Sprintf("%s = function() local KEYS, ARGV = {%s}, {%s}\n%s\nend\n", name, quoted(words(keys)), quoted(words(args)), texts[script])
	}
	for i := 1; i <= releases+acquires; i++ {
		n := strconv.Itoa(i)
		lines = append(lines, strings.ReplaceAll(states[r.IntN(len(states))], "#", n))
		locks = append(locks, "l"+n)
		if i <= releases {
			value := []string{"a/", "a/", "b/"}[r.IntN(3)] + n + "|now-5000"
			beside, values = append(beside, "q"+n), append(values, value)
			calls += function("single["+n+"]", "release", "l"+n+" q"+n, "1 "+value+" free:")
			continue
		}
		token := "0"
		if proposes {
			token = []string{"now", "now-1000000", "now+200000", "now-100000000", "now+100000000"}[r.IntN(5)]
		}
		beside, tokens = append(beside, "c"+n), append(tokens, token)
		calls += "proposed[" + n + "] = " + words(token)[0] + "\n"
		calls += function("single["+n+"]", prefix+"acquire", "l"+n+" c"+n+" mark"+meta, late+" o/"+n+" 60000 "+token+" 130000")
	}
	digits := "0"
	for i, token := range tokens {
		value := "o/" + strconv.Itoa(releases+i+1) + "|"
		if proposes {
			value, digits = value+token, "16"
		}
		values = append(values, value)
	}
	script := prefix + "batch"
	if acquires == 0 {
		script = "batch"
	}
	args := fmt.Sprintf("%s 60000 130000 %d %d %s %s", late, releases, acquires, digits, strings.Join(values, " "))
	batch := function("batch", script, strings.Join(slices.Concat(locks, beside), " ")+" mark"+meta, args)
	given = strings.Join(lines, "\n")
	before, _ := stateOf(given, nil)
	return given + "\n" + args, [2]string{fmt.Sprintf(shim, before, calls+batch+together), fmt.Sprintf(shim, before, calls+together)}
}

// TestABatchDoesWhatTheSingleScriptsDo draws calls and the states of their keys. A batch, with the calls
// that it leaves alone behind it, must give the same replies as the single scripts, and leave and publish
// the same.
func TestABatchDoesWhatTheSingleScriptsDo(t *testing.T) {
	s := server.Redis(t)
	if _, err := s.Do("SET", "k", "v", "NX", "GET"); err != nil {
		t.Skipf("the errors are those of Redis 7: %v", err)
	}
	rounds, scripts := 1000, texts()
	if testing.Short() {
		rounds = 100
	}
	r := rand.New(rand.NewPCG(1, 2))
	for round := range rounds {
		given, both := draw(r, scripts)
		if round%100 == 0 { // which keeps all texts
			if _, err := s.Do("SCRIPT", "FLUSH"); err != nil {
				t.Fatal(err)
			}
		}
		var told [2][]string
		for i, text := range both {
			told[i] = strings.Split(done(t, s, text), "\n")
			slices.Sort(told[i])
		}
		if !slices.EqualFunc(told[0], told[1], alike) {
			t.Fatalf("round %d:\n%s\nin a batch:%s\nsingly:%s", round, given, strings.Join(told[0], "\n"), strings.Join(told[1], "\n"))
		}
	}
}

// alike compares results. Not every one tells what the counter was before a grant.
func alike(a, b string) bool {
	x, _, xTells := strings.Cut(a, " before")
	y, _, yTells := strings.Cut(b, " before")
	return a == b || x == y && xTells != yTells
}
