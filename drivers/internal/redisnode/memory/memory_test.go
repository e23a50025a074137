package memory

import (
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver/quorum"
)

func TestTermsSurviveTheirEncoding(t *testing.T) {
	const us = time.Microsecond
	now := quorum.Terms{N: 5, Guard: 30 * time.Second, Excuse: 1 * us, Allowance: 2 * us, Quarantine: time.Hour + us, Grace: 3 * us, Drift: 1}
	for _, terms := range []quorum.Terms{now, {}} {
		if got, ok := ParseTerms(EncodeTerms(&terms)); !ok || got != terms {
			t.Errorf("%+v is decoded as %+v, %v", terms, got, ok)
		}
	}
	var r quorum.MemoryReport
	Report(&r, "2 run/"+EncodeTerms(&now)+" 0 0 1700000000000000:"+EncodeTerms(&now))
	if r.Terms == nil || *r.Terms != now {
		t.Errorf("the report is %+v", r)
	}
}

func TestWhatNoServerRemembersIsNoTerms(t *testing.T) {
	for _, encoded := range []string{"", "5", "1/2/3/4/5/6", "1/2/3/4/5/6/7/8", "1/2/3/4/5/6/x", "1/2/3/4/5/6/-7", "1/2/3/4/5/6/9007199254740993"} {
		if terms, ok := ParseTerms(encoded); ok {
			t.Errorf("%q is decoded as %+v", encoded, terms)
		}
	}
	for _, meta := range []string{"", "2 run/1/2/3/4/5/6/7", "3 run/1/2/3/4/5/6/7 0 0 -"} {
		r := quorum.MemoryReport{}
		if Report(&r, meta); r.Terms != nil {
			t.Errorf("the report of %q is %+v", meta, r)
		}
	}
}
