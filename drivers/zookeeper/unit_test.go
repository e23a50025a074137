package zookeeper

import (
	"bytes"
	"encoding/binary"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Unescape is for the list of what is stored.
var Unescape = unescape

// SetEntries sets after how many entries a container is made anew, or refused.
func (b *Backend) SetEntries(last int64) { b.lastEntries = last }

func TestAQueueIsInTheOrderOfItsSequenceNumbers(t *testing.T) {
	children := []string{
		"_c_6d5b9d2c-0001-4000-8000-000000000001-lock-0000000012",        // Curator's mutex, and ours
		"_c_6d5b9d2c-0001-4000-8000-000000000002-shared-lock-0000000003", // ours
		"_c_6d5b9d2c-0001-4000-8000-000000000004-shared-lock-0000000001", // ours
		"6d5b9d2c000140008000000000000005__lock__0000000005",             // kazoo's
		"lock-0000000002", // the recipe's
		"_c_b1f5f3a2a3f84d0a9d3f2f1f0f1f2f3f-lock-0000000009", // go-zookeeper's
		"somebody's folder", "leases", "x0000000001x",
	}
	var order []string
	var readers []int64
	for _, e := range parseQueue(children) {
		order = append(order, e.name[len(e.name)-2:])
		if e.mode == driver.Shared {
			readers = append(readers, e.sequence)
		}
	}
	if got := strings.Join(order, " "); got != "01 02 03 05 09 12" || !slices.Equal(readers, []int64{1, 3}) {
		t.Errorf("the order is %s, shared are %v", got, readers)
	}
}

// TestALeaseCountsFromWhatTheLeaderHeard: a lease lasts for its whole TTL if a request was
// answered long enough before the write that found the entry; otherwise it ends with the
// shortest possible end of the session.
func TestALeaseCountsFromWhatTheLeaderHeard(t *testing.T) {
	start := time.Now()
	at := func(seconds ...float64) (all []time.Time) {
		for _, s := range seconds {
			all = append(all, start.Add(time.Duration(s*float64(time.Second))))
		}
		return all
	}
	const timeout, ttl = 12 * time.Second, 8 * time.Second
	full := func(s float64) time.Time { return driver.Expires(at(s)[0], ttl) }
	short := func(s float64) time.Time { return driver.Expires(at(s)[0], timeout) }
	for name, test := range map[string]struct {
		touches []time.Time
		sent    float64
		want    time.Time
	}{
		"the connection was just made":           {nil, 1, full(1)},
		"nothing was heard since":                {nil, 9, short(0)},
		"what was heard is too young":            {at(6.5, 7, 8), 9, short(0)},
		"what was heard is old enough":           {at(5.5, 7, 8), 9, full(9)},
		"it was heard late":                      {at(1, 7, 8), 9, short(1)},
		"the last that is old enough counts":     {at(1, 2, 4, 7, 8), 9, short(4)},
		"a write counts for itself only in part": {at(9), 9, short(0)},
	} {
		if got := (&session{proven: start, touches: test.touches, timeout: timeout}).end(at(test.sent)[0], ttl); !got.Equal(test.want) {
			t.Errorf("%s: the lease ends after %v, not after %v", name, got.Sub(start), test.want.Sub(start))
		}
	}
}

// TestAPlaceLeavesItsSessionOnce: it may be told to do so for each try to release it.
func TestAPlaceLeavesItsSessionOnce(t *testing.T) {
	b := &Backend{}
	join := func() place {
		return place{b: b, s: b.sessions.Join(1, func() *session { return &session{b: b} })}
	}
	p, other := join(), join()
	b.sessions.Retire(p.s)
	p.leave()
	if p.leave(); b.sessions.Unused(other.s) {
		t.Error("a session with a user is unused")
	}
	if other.leave(); !b.sessions.Unused(other.s) {
		t.Error("a session without users is used")
	}
}

// TestWhichErrorsSettleARequest: a server's failure, or an answer that it was too busy, does not. What
// the request was to remove may be there still, and another try may remove it.
func TestWhichErrorsSettleARequest(t *testing.T) {
	for code, want := range map[int32]bool{
		-101: true, -102: true, -103: true, -110: true, -111: true, -114: true, -8: true,
		-1: false, -2: false, -3: false, -4: false, -5: false, -7: false, -115: false, -122: false, -127: false,
	} {
		if definite(serverError(code)) != want {
			t.Errorf("error %d settles a request: %v", code, !want)
		}
	}
}

// answered reports whether the body of an answer to a request of this kind is whole.
func answered(op int32, body []byte) bool {
	r := reader{rest: body}
	_ = r.answer(op, &answer{})
	return !r.failed
}

// TestNestedTransactions: a transaction in each of a transaction's parts is no answer, however deep
// they would be in the largest packet.
func TestNestedTransactions(t *testing.T) {
	t.Parallel()
	part := binary.BigEndian.AppendUint32([]byte{0, 0, 0, opMulti, 0}, math.MaxUint32)
	if answered(opMulti, bytes.Repeat(part, mostPacket/len(part))) {
		t.Error("a transaction without an end is understood")
	}
}

// FuzzAnswers: whatever a server answers is read without a crash, and in a short time.
func FuzzAnswers(f *testing.F) {
	stat := strings.Repeat("\x00", 68)
	for op, body := range map[int32]string{
		opCreate: "\x00\x00\x00\x02/a", opGet: "\xff\xff\xff\xff" + stat, opChildren: "\x00\x00\x00\x01\x00\x00\x00\x01x" + stat,
		opMulti: "\x00\x00\x00\x05\x00\xff\xff\xff\xff" + stat + "\xff\xff\xff\xff\x00\xff\xff\xff\x9b\xff\xff\xff\x9b\xff\xff\xff\xff\x01\xff\xff\xff\xff",
	} {
		if !answered(op, []byte(body)) {
			f.Errorf("an answer to a request %d is not understood", op)
		}
		f.Add(op, []byte(body))
		f.Add(op, []byte("\x7f\xff\xff\xff"))
	}
	f.Fuzz(func(t *testing.T, op int32, body []byte) {
		answered(op, body)
	})
}

// A server that reads nothing holds up requests, which are sent one after another, no longer than one
// that answers nothing.
func TestAServerThatReadsNothingHoldsUpRequestsForABoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Backend{opt: Options{CallTimeout: time.Minute}}
		near, far := net.Pipe() // nothing is written until it is read
		defer far.Close()       //nolint:errcheck // a pipe
		l := &link{s: &session{b: b}, conn: near, number: math.MaxInt32 - 1}
		for _, want := range []time.Duration{b.silence(), 0} { // then the connection has ended
			start := time.Now()
			// The numbers of requests begin anew before they are negative, which stand for other answers.
			if c, err := l.send(request{op: opGet}); err != nil || c.number <= 0 {
				t.Errorf("request %+v: %v", c, err)
			}
			if took := time.Since(start); took != want {
				t.Errorf("a request was held up for %v, want %v", took, want)
			}
		}
	})
}

// A request that is lost is looked for after a write, which a majority has decided: a server that was too busy
// for the write, or failed, has not caught up.
func TestCatchingUpNeedsAVerdict(t *testing.T) {
	for code, want := range map[serverError]bool{errNoNode: true, errNoAuth: true, -1: false, errRequestTimeout: false} {
		near, far := net.Pipe()
		s := &session{b: &Backend{opt: Options{CallTimeout: time.Minute}}, changed: make(chan struct{})}
		s.link = &link{s: s, conn: near, done: make(chan struct{})}
		l := s.link
		go l.run()
		go func() {
			asked := make([]byte, 1000)
			_, _ = far.Read(asked) // its length, and its number
			_, _ = far.Write(appendText(nil, appendNumber(binary.BigEndian.AppendUint64(asked[4:8:8], 1), int32(code))))
		}()
		before := time.Now()
		sent, err := s.catchUp(t.Context(), "/")
		if (err == nil) != want || sent.Before(before) {
			t.Errorf("after error %d: %v", code, err)
		}
		_ = far.Close()
		<-l.done
	}
}
