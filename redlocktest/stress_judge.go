package redlocktest

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/redlock-go/redlock/driver"
)

// A tenure is the time in which one owner certainly has a lock. It may have several parts,
// because a lease that ended by its client's clock may be renewed while the server still has
// the lock.
type tenure struct {
	in          input // of the attempt
	who, client int
	fence       uint64
	call, ret   int64 // of the grant
	parts       [][2]int64
	cut         int64 // since when its session may have ended: by a fault, or in a process by what the stress does not see; zero: it has not
	forgot      int64 // since when servers may have forgotten it; zero: they have not
	told        int64 // when its client was told first that it is lost; zero: never
	over        int64 // when the lease was certainly over on the server, or the end of the record
}

// judge checks the record of a key, and forgets it.
func (s *stress) judge(k *stressKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.judged {
		return
	}
	k.judged = true
	var f *stressFinding
	if !s.found.Load() {
		f = s.fault(k.ops)
	}
	if f != nil && s.found.CompareAndSwap(false, true) {
		s.record(f.broken, "%s\nThe shortest part of the record that shows it:\n%sAll calls of the key: %s\nThe seed %d makes the same choices again (REDLOCKTEST_SEED, --seed)",
			f.text, words(f.window), keep(words(k.ops)), s.o.Seed)
	}
	k.ops = nil
}

// A stressFinding is a rule that a record breaks, and the part that shows it.
type stressFinding struct {
	broken rule
	text   string
	window []porcupine.Operation
}

// fault returns the rule that the calls of a key break, or nil.
func (s *stress) fault(ops []porcupine.Operation) *stressFinding {
	end := s.now()
	all := s.tenures(ops, end)
	f := overlap(ops, all)
	if f != nil {
		return f
	}
	if s.info.Features.Has(driver.FeatureFencing) {
		if f := falling(ops, all); f != nil {
			return f
		}
	}
	if f := unseen(ops, all); f != nil {
		return f
	}
	if !slices.ContainsFunc(all, func(t tenure) bool { return t.cut > 0 }) {
		return s.unexplained(ops, all, end, s.h.maxSteps())
	}
	// The time of a loss is unknown: there may be too many orders for a search.
	f = s.unexplained(ops, all, end, s.h.maxSteps()/20)
	if f != nil && f.broken == nothingShown {
		return nil
	}
	return f
}

// tenures returns when each lease was certainly held.
func (s *stress) tenures(ops []porcupine.Operation, end int64) (all []tenure) {
	for _, op := range ops {
		in, out := op.Input.(input), op.Output.(output)
		if in.kind != acquireOp || out.verdict != granted {
			continue
		}
		t := tenure{in: in, who: in.who, client: op.ClientId, fence: out.fence, call: op.Call, ret: op.Return, over: end}
		until, asked := int64(math.MaxInt64), int64(0) // asked: when the call was made that told the loss
		t.parts = [][2]int64{{op.Return, expiry(out)}}
		for _, o := range ops {
			in, out := o.Input.(input), o.Output.(output)
			if tells := in.kind == renewOp || in.kind == releaseOp; tells && in.who == t.who && out.verdict == lost && (t.told == 0 || o.Return < t.told) {
				t.told, asked = o.Return, o.Call
			}
			switch {
			case in.who != t.who:
			case in.kind == renewOp && out.verdict != lost:
				t.shorten(out.expires, o.Call)
				if out.verdict == granted {
					t.parts = append(t.parts, [2]int64{o.Return, expiry(out)})
				}
			case in.kind == releaseOp || in.kind == breakOp:
				until = min(until, o.Call)
				if out.open > 0 {
					until = min(until, out.open)
					if s.session() && s.clients[t.client].remote {
						t.cut = t.call // though a fault may have come later
					}
				}
				if in.kind == releaseOp && (out.verdict == granted || out.verdict == lost) {
					t.over = min(t.over, o.Return)
				}
			}
		}
		if s.session() {
			if cut := s.since(t.call, t.over, func(f *stressFault) bool { return f.client == t.client || f.client == allClients }); cut > 0 {
				t.cut, until = cmp.Or(t.cut, cut), min(until, cut)
			}
		}
		t.forgot = s.since(t.call, t.over, func(f *stressFault) bool { return f.forgets })
		if t.forgot > 0 && t.told > 0 { // until then nobody else may have it, though servers forgot it
			until = min(until, asked)
		}
		for i := range t.parts {
			t.parts[i][1] = min(t.parts[i][1], until)
		}
		t.parts = slices.DeleteFunc(t.parts, func(p [2]int64) bool { return p[0] >= p[1] })
		all = append(all, t)
	}
	return all
}

// shorten cuts the parts that last beyond end. It cuts none to before call, the instant at which
// the renewal that may have shortened the lease was called.
func (t *tenure) shorten(end, call int64) {
	for i := range t.parts {
		if p := &t.parts[i]; end > 0 {
			p[1] = min(p[1], max(end, call))
		}
	}
}

// expiry returns the end of a lease; never, if it ends only with its session.
func expiry(out output) int64 {
	if out.expires == 0 {
		return math.MaxInt64
	}
	return out.expires
}

// overlap searches the tenures, in the order of their beginnings, for two owners at once.
func overlap(ops []porcupine.Operation, all []tenure) *stressFinding {
	type part struct {
		from, to int64
		of       *tenure
	}
	var parts []part
	for i := range all {
		for _, p := range all[i].parts {
			parts = append(parts, part{p[0], p[1], &all[i]})
		}
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.from, b.from) })
	var active []part
	for _, p := range parts {
		active = slices.DeleteFunc(active, func(a part) bool { return a.to <= p.from })
		for _, a := range active {
			if a.of == p.of || a.of.in.shared && p.of.in.shared {
				continue
			}
			how := "since " + stamp(a.from)
			if a.to != math.MaxInt64 {
				how += " and until " + stamp(a.to)
			}
			return &stressFinding{exclusion, fmt.Sprintf("two owners at once for %v: client %d has the lock with token %d %s, and client %d gets it with token %d at %s",
				time.Duration(min(a.to, p.to, p.from+int64(time.Hour))-p.from), a.of.client, a.of.fence, how, p.of.client, p.of.fence, stamp(p.from)),
				attempts(ops, a.of.who, p.of.who)}
		}
		active = append(active, p)
	}
	return nil
}

// falling finds a grant that was requested after another grant's answer and has no larger token, and
// two grants with one token, unless they are shared leases whose requests overlapped.
func falling(ops []porcupine.Operation, all []tenure) *stressFinding {
	for i := range all {
		for j := range all {
			a, b := &all[i], &all[j]
			readers := a.in.shared && b.in.shared && a.ret >= b.call && b.ret >= a.call
			if i != j && (a.ret < b.call || i < j) && (a.fence == b.fence && !readers || a.ret < b.call && a.fence > b.fence) {
				return &stressFinding{tokens, fmt.Sprintf("token %d was given at %s, and the grant that was asked for at %s has token %d, which is not larger",
					a.fence, stamp(a.ret), stamp(b.call), b.fence), attempts(ops, a.who, b.who)}
			}
		}
	}
	return nil
}

// unseen finds a Lookup that saw no holder although a lease was held during the whole call.
func unseen(ops []porcupine.Operation, all []tenure) *stressFinding {
	for _, op := range ops {
		in, out := op.Input.(input), op.Output.(output)
		if in.kind != lookOp || out.holder != "" {
			continue
		}
		for _, t := range all {
			inPart := func(p [2]int64) bool { return p[0] <= op.Call && op.Return <= p[1] }
			if t.forgot == 0 && slices.ContainsFunc(t.parts, inPart) {
				return &stressFinding{inspecting, fmt.Sprintf("Lookup sees no holder from %s to %s, when client %d has the lock with token %d",
					stamp(op.Call), stamp(op.Return), t.client, t.fence), append(attempts(ops, t.who), op)}
			}
		}
	}
	return nil
}

// attempts returns the calls of some attempts.
func attempts(ops []porcupine.Operation, who ...int) []porcupine.Operation {
	return slices.DeleteFunc(slices.Clone(ops), func(o porcupine.Operation) bool {
		in := o.Input.(input)
		return !slices.Contains(who, in.who) || in.kind == undoOp
	})
}

// unexplained finds calls whose answers no order explains, in at most this many steps. Records of sound
// backends need a few hundred; once in some 100,000 calls one needs more than 200,000.
func (s *stress) unexplained(ops []porcupine.Operation, all []tenure, end, most int64) *stressFinding {
	m := lockModel(s.info.Features.Has(driver.FeatureFencing))
	check := func(ops []porcupine.Operation) (legal, decided bool) {
		legal, steps := decide(m, s.whole(ops, all, end), most)
		return legal, legal || steps <= most
	}
	switch legal, decided := check(ops); {
	case legal:
		return nil
	case !decided:
		return &stressFinding{nothingShown, fmt.Sprintf("the checker could not decide within %d steps whether some order of %d calls explains their answers", most, len(ops)), nil}
	}
	window := shortest(ops, func(part []porcupine.Operation) bool {
		legal, decided := check(part)
		return decided && !legal
	})
	return &stressFinding{history, fmt.Sprintf("no order of %d calls explains their answers", len(window)), window}
}

// whole returns the calls for the model. It adds the ends of leases that may have come by
// themselves, and leaves out calls without an answer that explain no other answer, because each
// of them makes the search longer. An attempt without an answer is left out too: nameRivals
// already excuses the refusals beside it. So is the repeat of a release without an answer: the first
// may take effect as late.
func (s *stress) whole(ops []porcupine.Operation, all []tenure, end int64) []porcupine.Operation {
	full := slices.Clone(ops)
	for i := range full {
		if full[i].Return < 0 {
			full[i].Return = end
		}
	}
	nameRivals(full, s.quorum.Load())
	first := map[int]int64{} // when the first release without an answer began, by attempt
	for _, o := range full {
		in, out := o.Input.(input), o.Output.(output)
		if at, ok := first[in.who]; in.kind == releaseOp && out.verdict == unknown && (!ok || o.Call < at) {
			first[in.who] = o.Call
		}
	}
	full = slices.DeleteFunc(full, func(o porcupine.Operation) bool {
		in, out := o.Input.(input), o.Output.(output)
		if in.kind == releaseOp {
			return out.verdict == unknown && o.Call > first[in.who]
		}
		return in.kind == lookOp || in.kind == undoOp || out.verdict == unknown && (in.kind == acquireOp || in.kind == renewOp)
	})
	for _, t := range all {
		full = append(full, t.ends(ops)...)
	}
	return full
}

// ends returns the events that may have ended a lease whose attempt is among the calls: its TTL; servers
// that forgot it, if its client was told the loss; and the end of its session, which its client notices,
// and the server, perhaps later.
func (t *tenure) ends(ops []porcupine.Operation) (events []porcupine.Operation) {
	event := func(k kind, cut bool, from, to int64) {
		in := t.in
		in.kind, in.cut = k, cut
		events = append(events, porcupine.Operation{ClientId: t.client, Input: in, Call: from, Output: output{verdict: unknown}, Return: to})
	}
	there, last, confirmed := false, int64(math.MaxInt64), int64(0)
	for _, o := range ops {
		of, out := o.Input.(input), o.Output.(output)
		switch {
		case of.who != t.who:
		case of.kind == acquireOp:
			there, last, confirmed = true, expiry(out), o.Call
		case of.kind == renewOp && out.verdict == granted:
			last, confirmed = expiry(out), o.Call
		case of.kind == renewOp && out.verdict == unknown:
			last = min(last, expiry(out))
		}
	}
	if !there {
		return nil
	}
	// Not before the last call that found the lease valid: the search need not try that.
	if last = max(last, confirmed+1); last < t.over {
		event(loseOp, false, last, t.over)
	}
	if from := max(t.forgot, confirmed+1); t.forgot > 0 && from < min(t.told, last) {
		event(loseOp, false, from, t.told)
	}
	if t.cut > 0 {
		event(loseOp, true, t.cut, t.over)
		event(reapOp, true, t.cut, t.over)
	}
	return events
}

// shortest returns a short part of a record that still breaks the rule. It ends with the first
// answer that cannot be explained, and begins as late as possible: it leaves out attempts that
// were over earlier, with all their calls.
func shortest(ops []porcupine.Operation, bad func([]porcupine.Operation) bool) []porcupine.Operation {
	until := func(t int64) (part []porcupine.Operation) {
		for _, o := range ops {
			if o.Call > t {
				continue
			}
			if o.Return > t { // its answer is to come
				in, out := o.Input.(input), o.Output.(output)
				if out.verdict == held || in.kind == renewOp || in.kind == lookOp {
					continue
				}
				out.verdict, o.Output, o.Return = unknown, out, -1
				o.Output = output{verdict: unknown}
			}
			part = append(part, o)
		}
		return part
	}
	var ends []int64
	for _, o := range ops {
		if o.Return >= 0 {
			ends = append(ends, o.Return)
		}
	}
	slices.Sort(ends)
	window := ops
	if i, _ := slices.BinarySearchFunc(ends, 0, func(t int64, _ int) int {
		if bad(until(t)) {
			return 0
		}
		return -1
	}); i < len(ends) {
		window = until(ends[i])
	}
	var begins []int64
	for _, o := range window {
		begins = append(begins, o.Call)
	}
	slices.Sort(begins)
	for _, from := range slices.Backward(begins) {
		ended := map[int]bool{} // certainly earlier
		for _, o := range window {
			in, out := o.Input.(input), o.Output.(output)
			if in.kind == lookOp || in.kind == acquireOp && out.verdict == held || in.kind == releaseOp && out.verdict != unknown {
				ended[in.who] = true
			}
		}
		stays := map[int]bool{}
		for _, o := range window {
			if who := o.Input.(input).who; o.Return < 0 || o.Return >= from || !ended[who] {
				stays[who] = true
			}
		}
		part := slices.DeleteFunc(slices.Clone(window), func(o porcupine.Operation) bool { return !stays[o.Input.(input).who] })
		if len(part) < len(window) && bad(part) {
			return part
		}
	}
	return window
}

// stamp formats an instant of the record.
func stamp(t int64) string { return fmt.Sprintf("%.6f s", time.Duration(t).Seconds()) }

func byCall(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) }

// words describes calls in the order in which they were made.
func words(ops []porcupine.Operation) string {
	var text strings.Builder
	for _, o := range slices.SortedFunc(slices.Values(ops), byCall) {
		in, out := o.Input.(input), o.Output.(output)
		if in.kind == undoOp {
			continue
		}
		what := map[kind]string{acquireOp: "asks for the lock", renewOp: "renews", releaseOp: "releases", breakOp: "breaks the lock", lookOp: "looks"}[in.kind]
		if in.kind == acquireOp && in.waits {
			what += " and waits"
		}
		if in.shared && in.kind == acquireOp {
			what += ", shared"
		}
		answer := out.verdict.String()
		switch {
		case out.verdict == unknown:
			answer = "no answer"
		case out.verdict == held && out.reserved:
			answer = "kept for the first waiter"
		case out.verdict == held:
			answer = "held by another"
		case in.kind == lookOp && out.holder == "":
			answer = "nobody has it"
		case in.kind == lookOp:
			answer = fmt.Sprintf("held with token %d", out.fence)
		case out.verdict == granted && in.kind == acquireOp:
			answer = fmt.Sprintf("granted, token %d", out.fence)
		case out.verdict == granted:
			answer = "done"
		}
		if out.expires > 0 {
			answer += ", until " + stamp(out.expires)
		}
		ret := "…"
		if o.Return >= 0 {
			ret = stamp(o.Return)
		}
		fmt.Fprintf(&text, "\t%s to %-12s client %d, attempt %d %s: %s\n", stamp(o.Call), ret, o.ClientId, in.who, what, answer)
	}
	return text.String()
}

// keep writes a text to a file, and returns the file's path.
func keep(text string) string {
	f, err := os.CreateTemp("", "redlocktest-stress-*.txt")
	if err != nil {
		return fmt.Sprintf("nowhere: %v", err)
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Sprintf("%s, which is not whole: %v", f.Name(), err)
	}
	return f.Name()
}
