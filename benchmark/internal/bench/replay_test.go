package bench

import (
	"slices"
	"strconv"
	"testing"
	"time"
)

func TestARecordedCommandIsFilledWithOtherNamesAndFreshTimes(t *testing.T) {
	const fence = 1_700_000_000_000_000
	due := time.Now().Add(time.Second).UnixMicro()
	p := newPattern([]string{
		"EVALSHA", "abc", "2", recordedKey, "fence:{" + recordedKey + "}", strconv.FormatInt(due, 10),
		recordedOwner + "|" + strconv.Itoa(fence), "10000", "86400000",
	}, fence)
	p.at = p.at.Add(-time.Minute) // recorded a minute ago
	got := p.fill("k", "me", "42")
	fresh, err := strconv.ParseInt(got[5], 10, 64)
	if err != nil || fresh < due+time.Minute.Microseconds() || fresh > due+2*time.Minute.Microseconds() {
		t.Errorf("the time is %v, a minute after %d is wanted", got[5], due)
	}
	got[5] = "then"
	want := []string{"EVALSHA", "abc", "2", "k", "fence:{k}", "then", "me|42", "10000", "86400000"}
	if !slices.Equal(got, want) {
		t.Errorf("filled %q, want %q", got, want)
	}
}

func TestBothFormsOfAGrantAreRead(t *testing.T) {
	r := &replay{}
	for _, reply := range []any{int64(78), []any{int64(1), int64(78), int64(9)}} {
		if token, ok := r.granted(reply); !ok || token != "78" {
			t.Errorf("granted %v: %q, %v", reply, token, ok)
		}
	}
	for _, reply := range []any{nil, "OK", []any{int64(0), "somebody", int64(9)}} {
		if _, ok := r.granted(reply); ok {
			t.Errorf("a refusal was taken for a grant: %v", reply)
		}
	}
}
