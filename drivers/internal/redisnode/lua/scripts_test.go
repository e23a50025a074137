package lua_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var update = flag.Bool("update", false, "write what the scripts do into testdata/scripts.txt; look at the difference")

// The scripts run for this process, with these terms, and at this time, unless a case says otherwise.
const (
	process = "ab"
	encoded = "5/100000000/200000/10000000/60000000/850000/1"
	now     = 1700000014_000000
)

// usual is before each case.
const usual = `
fake TIME '[1700000014 0]'
fake 'INFO server' 'redis_version:7.0.15 run_id:ab'
fake 'INFO replication' 'role:master master_replid2:000'
fake 'INFO memory' maxmemory:0
`

var terms = quorum.Terms{N: 5, Allowance: 10 * time.Second, Quarantine: 60 * time.Second, Grace: 850 * time.Millisecond}

// shim stands before a script: commands that contain the text of a fake get its answer, and what is
// published is noted, and each key that is none of KEYS: servers and proxies demand that a script names
// its keys that run scripts in parallel, or find a key's server by its name. The script is followed by a reading of the server's data. The
// times to live are rounded, so that those of 10 ms, and of 1 ms more, are told alike as long as all
// of it takes less than 8 ms; how long it took is told as well.
const shim = `
local real, said, fakes, declared = redis, {}, {}, nil
local redis = {error_reply = real.error_reply}
local function rounded(ms) return math.ceil((ms - 1) / 10) * 10 end
local function run(how, ...)
  local command = table.concat({...}, ' ')
  if string.find(command, 'PUBLISH', 1, true) == 1 then said[#said + 1] = command end
  local word, last = {...}, 2
  if word[1] == 'DEL' or word[1] == 'MGET' or word[1] == 'EXISTS' then last = #word end
  if not declared or word[1] == 'TIME' or word[1] == 'INFO' or word[1] == 'PUBLISH' then last = 0 end
  for i = 2, last do
    if not string.find(declared, ' ' .. word[i] .. ' ', 1, true) then said[#said + 1] = 'not declared: ' .. word[i] end
  end
  for i = #fakes, 1, -1 do
    local fake = fakes[i][2]
    if string.find(command, fakes[i][1], 1, true) then
      if type(fake) == 'table' and fake.err and how == real.call then error(fake) end
      return fake
    end
  end
  local reply = how(...)
  if string.find(command, 'PTTL', 1, true) == 1 and reply > 0 then reply = rounded(reply) end
  return reply
end
function redis.call(...) return run(real.call, ...) end
function redis.pcall(...) return run(real.pcall, ...) end
for _, key in ipairs(real.call('KEYS', '*')) do real.call('DEL', key) end
local began = real.call('TIME')
%s
local function script()
%s
end
local fine, reply = pcall(script)
if type(reply) == 'table' and reply.err then reply = 'error ' .. reply.err elseif not fine then reply = 'fails ' .. reply end
local keys = real.call('KEYS', '*')
table.sort(keys)
for _, key in ipairs(keys) do
  local kind, left = real.call('TYPE', key).ok, real.call('PTTL', key)
  local value = kind
  if kind == 'string' then value = real.call('GET', key) end
  if kind == 'zset' then value = table.concat(real.call('ZRANGE', key, 0, -1, 'WITHSCORES'), ' ') end
  said[#said + 1] = key .. ' ' .. value .. (left < 0 and '' or ' PX ' .. rounded(left))
end
local ended = real.call('TIME')
return {(ended[1] - began[1]) * 1000000 + ended[2] - began[2], said, reply}
`

var (
	word    = regexp.MustCompile(`'[^']*'|\S+`)
	instant = regexp.MustCompile(`\bnow\b([+-]\d+)?`)
	sixteen = regexp.MustCompile(`\b1[67]\d{14}\b`)
	long    = regexp.MustCompile(`x{100,}`)
	where   = regexp.MustCompile(` script: [0-9a-f]{40}.*|(user_script|@user_script): ?\d+: `)
)

// words splits a line, and puts the values in place of names.
func words(line string) []string {
	var all []string
	for _, w := range word.FindAllString(line, -1) {
		w = strings.ReplaceAll(w, "x*1500", strings.Repeat("x", 1500))
		w = strings.ReplaceAll(strings.Trim(w, "'"), "TERMS", encoded)
		all = append(all, instant.ReplaceAllStringFunc(w, func(s string) string {
			ahead, _ := strconv.ParseInt(s[3:], 10, 64)
			return strconv.FormatInt(now+ahead, 10)
		}))
	}
	return all
}

// named puts names in place of values.
func named(text string) string {
	text = long.ReplaceAllStringFunc(text, func(s string) string { return fmt.Sprintf("x*%d", len(s)) })
	text = where.ReplaceAllString(strings.ReplaceAll(text, encoded, "TERMS"), "")
	return sixteen.ReplaceAllStringFunc(text, func(s string) string {
		n, _ := strconv.ParseInt(s, 10, 64)
		switch ahead := n - now; {
		case ahead == 0:
			return "now"
		case max(ahead, -ahead) < 1e12:
			return fmt.Sprintf("now%+d", ahead)
		}
		return s
	})
}

func quoted(words []string) string {
	var b strings.Builder
	for i, w := range words {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "[==[%s]==]", w)
	}
	return b.String()
}

// texts returns the scripts by their names in the file.
func texts() map[string]string {
	texts := map[string]string{"hello": lua.Hello, "look": lua.Look, "list": lua.List}
	bound, guarded := lua.Bind(process), lua.BindGuarded(process, "space", encoded, &terms)
	for i, name := range []string{"acquire", "join", "acquire_shared", "join_shared", "renew_shared", "renew", "release", "release_shared", "lookup", "listen", "batch"} {
		texts[name], texts["guarded-"+name] = bound[i].Text, guarded[i].Text
	}
	return texts
}

// oneText returns the lines before a reply as one script: commands that make the state before, and
// the script of the case.
func oneText(t *testing.T, lines string, texts map[string]string) string {
	before, w := stateOf(lines, texts)
	if w == nil {
		t.Fatalf("no script in %q", lines)
	}
	keys, args := w[1:], []string(nil)
	for i, a := range w {
		if a == ":" {
			keys, args = w[1:i], w[i+1:]
		}
	}
	return fmt.Sprintf(shim, before+fmt.Sprintf("local KEYS, ARGV = {%s}, {%s}\ndeclared = [==[ %s ]==]\n", quoted(keys), quoted(args), strings.Join(keys, " ")), texts[w[0]])
}

// stateOf returns the commands of lines, up to the call of a script.
func stateOf(lines string, texts map[string]string) (commands string, call []string) {
	var before strings.Builder
	for line := range strings.Lines(usual + lines) {
		w := words(line)
		switch {
		case len(w) == 0 || w[0] == "#":
		case w[0] == "fake" && w[2][0] == '[':
			fmt.Fprintf(&before, "fakes[#fakes + 1] = {[==[%s]==], {%s}}\n", w[1], quoted(strings.Fields(strings.Trim(w[2], "[]"))))
		case w[0] == "fake" && strings.HasPrefix(w[1], "INFO"):
			fmt.Fprintf(&before, "fakes[#fakes + 1] = {'%s', [==[%s]==]}\n", w[1], strings.ReplaceAll(w[2], " ", "\r\n"))
		case w[0] == "fake":
			fmt.Fprintf(&before, "fakes[#fakes + 1] = {[==[%s]==], tonumber('%s') or '%s'}\n", w[1], w[2], w[2])
		case w[0] == "fail":
			fmt.Fprintf(&before, "fakes[#fakes + 1] = {[==[%s]==], {err = '%s'}}\n", w[1], w[2])
		case texts[w[0]] != "":
			return before.String(), w
		default:
			fmt.Fprintf(&before, "real.call(%s)\n", quoted(w))
		}
	}
	return before.String(), nil
}

// done runs a text, and returns what is told of it, in lines.
func done(t *testing.T, s *server.Server, text string) string {
	for {
		reply, err := s.Do("EVAL", text, "0")
		drivertest.Must(t, err)
		parts := append(reply.([]any), nil) // a reply of nil would not be there
		if took := parts[0].(int64); took > 7000 {
			continue // the machine paused, so times to live have passed
		}
		lines := []string{fmt.Sprint(parts[2])}
		for _, line := range parts[1].([]any) {
			lines = append(lines, fmt.Sprint(line))
		}
		var b strings.Builder
		for i, times := 0, 0; i < len(lines); i += times {
			for times = 1; i+times < len(lines) && lines[i+times] == lines[i]; {
				times++
			}
			b.WriteString("\n" + strings.TrimSpace("= "+lines[i]))
			if times > 1 {
				fmt.Fprintf(&b, "\n= that %d times", times)
			}
		}
		return named(b.String())
	}
}

// TestScriptsDoWhatTheirHeadsSay runs the cases of testdata/scripts.txt: whole replies, and all
// that a script leaves on the server, at times of its clock that are exact.
func TestScriptsDoWhatTheirHeadsSay(t *testing.T) {
	const file = "testdata/scripts.txt"
	content, err := os.ReadFile(file)
	drivertest.Must(t, err)
	s := server.Redis(t)
	if _, err := s.Do("SET", "k", "v", "NX", "GET"); err != nil {
		t.Skipf("the table has the errors of Redis 7: %v", err)
	}
	scripts := texts()
	var all []string
	for block := range strings.SplitSeq(strings.TrimSpace(string(content)), "\n\n") {
		if !strings.HasPrefix(block, "##") { // which is about the cases that follow
			given, want, _ := strings.Cut(block, "\n=")
			got := done(t, s, oneText(t, given, scripts))
			if got != "\n="+want && !*update {
				t.Errorf("%s%s\nwant\n=%s", given, got, want)
			}
			block = given + got
		}
		all = append(all, block)
	}
	if *update {
		drivertest.Must(t, os.WriteFile(file, []byte(strings.Join(all, "\n\n")+"\n"), 0o644))
	}
}
