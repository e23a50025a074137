package redlock

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver/boot"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
)

var (
	bidStages  = [...]string{"resting", "electing", "asking", "draining", "pausing", "leading", "lingering", "raising", "sitting", "quieting", "renewing"}
	bidEvents  = map[string]eventKind{"begin": begins, "look": looks, "over": looks, "renew": renews, "last": renews, "release": releases}
	bidAnswers = map[string]answer{"silent": silence, "ok": granted, "held": held, "kept": reserved, "later": deferred, "never": refused, "misuse": misuse, "gone": gone, "unasked": unasked}
	bidOwners  = map[string]owner{"": somebody, "nobody": nobody, "ours": ourselves, "readers": readers, "b": somebody + 1, "c": somebody + 2}
)

// bidPlay is a bid under test, and what the host says to it.
type bidPlay struct {
	bid
	host event
	sent [MaxNodes]boot.Instant
}

// says does what a word says without an event, and reports whether there is none.
func (p *bidPlay) says(word string) bool {
	name, value, _ := strings.Cut(word, ":")
	nodes := set(0)
	for i := range MaxNodes {
		if strings.Contains(value, strconv.Itoa(i)) {
			nodes.add(i)
		}
	}
	d, err := time.ParseDuration(word)
	switch {
	case err == nil:
		p.host.now = p.host.now.Add(d)
	case name == "late":
		p.host.late = nodes
	case name == "tripped":
		p.host.tripped = nodes
	case name == "ttl":
		p.ttl, _ = time.ParseDuration(value)
	case name == "round":
		n, _ := strconv.Atoi(value)
		p.round = int8(n)
	case name == "ended":
		p.host.ended = true
	case name == "jumped":
		p.host.jumped = true
	case name == "double":
		p.host.duplicate = true
	default:
		return false
	}
	return true
}

// event returns the event of a word.
func (p *bidPlay) event(word string) event {
	if word == "over" {
		p.host.now = p.due
	}
	e := p.host
	name, value, _ := strings.Cut(word, ":")
	kind, ok := bidEvents[name]
	switch e.kind = kind; {
	case ok && name == "renew":
		e.ttl, e.timeout = p.ttl, time.Second
		if d, err := time.ParseDuration(value); err == nil {
			e.timeout = d
		}
		return e
	case ok:
		return e
	}
	e.kind, e.node = answered, int(word[0]-'0')
	what, ahead, _ := strings.Cut(word[2:], "@")
	what, owner, _ := strings.Cut(what, ":")
	token, err := strconv.ParseUint(what, 10, 64)
	if e.fence = token; err == nil {
		what = "ok"
	}
	switch e.answer = bidAnswers[what]; e.answer {
	case held:
		e.owner = bidOwners[owner]
	case reserved:
		e.owner = firstWaiter
	}
	off, _ := time.ParseDuration(ahead)
	at := time.Duration(e.now) + off
	e.clock = reading{earliest: at, latest: at, sent: p.sent[e.node], received: e.now, excuse: time.Second, drift: 1, known: true}
	return e
}

// play makes a step, and returns what the bid did.
func (p *bidPlay) play(words string) string {
	var sum actions
	for word := range strings.FieldsSeq(words) {
		if p.says(word) {
			continue
		}
		e := p.event(word)
		out := p.step(&e)
		for i, c := range out.calls {
			if c != idle {
				sum.calls[i], p.sent[i] = c, e.now
			}
		}
		sum.verdict, sum.pause, sum.back, sum.wrong = out.verdict, out.pause, sum.back|out.back, sum.wrong|out.wrong
	}
	return p.told(&sum)
}

// told returns what a bid did.
func (p *bidPlay) told(out *actions) string {
	said := []string{bidStages[p.stage]}
	switch {
	case out.verdict == won, out.verdict == extended:
		said = []string{exVerdicts[out.verdict], p.expires.Sub(p.start).String()}
	case out.verdict != open:
		said = []string{exVerdicts[out.verdict]}
	case out.pause > 0:
		said = append(said, "~"+out.pause.String())
	case p.stage != resting:
		said = append(said, p.due.Sub(p.host.now).String())
	}
	nodes := func(name string, is func(i int) bool) {
		list := ""
		for i := range p.parts {
			if is(i) {
				list += strconv.Itoa(i)
			}
		}
		if list != "" {
			said = append(said, name+":"+list)
		}
	}
	for c := acquire; c <= release; c++ {
		if c != raiseLate {
			name := exCalls[c]
			if c == acquire || c == join {
				name += fmt.Sprint(" ", p.attempt)
			}
			nodes(name, func(i int) bool { return exCalls[out.calls[i]] == exCalls[c] })
		}
	}
	nodes("back", out.back.has)
	nodes("wrong", out.wrong.has)
	if p.silent {
		said = append(said, "silent")
	}
	if p.phase == over {
		n, certain := p.cleared()
		said = append(said, fmt.Sprint("free:", n, map[bool]string{true: "!"}[certain]))
	}
	return strings.Join(said, " ")
}

// What a bid does after each order of answers in testdata/bids.txt.
func TestABidDoesWhatItsRulesSay(t *testing.T) {
	content, err := os.ReadFile("testdata/bids.txt")
	drivertest.Must(t, err)
	_, blocks, _ := strings.Cut(string(content), "\n\n")
	for block := range strings.SplitSeq(strings.TrimSpace(blocks), "\n\n") {
		title, steps, _ := strings.Cut(block, "\n")
		n := int(title[0] - '0')
		t.Run(title[3:], func(t *testing.T) {
			p := &bidPlay{host: event{until: 1 << 60}, bid: bid{q: n/2 + 1, drift: 1, ttl: time.Minute, timeout: time.Second, parts: make([]part, n)}}
			for step := range strings.SplitSeq(steps, "\n") {
				words, want, checked := strings.Cut(step, " > ")
				if got := p.play(words); checked && got != want {
					t.Errorf("%s\ndoes > %s\nwant > %s", words, got, want)
				}
			}
		})
	}
}
