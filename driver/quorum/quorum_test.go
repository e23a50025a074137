package quorum_test

import (
	"errors"
	"io"
	"testing"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
)

func TestAQuorumErrorUnwrapsToItsVerdictAlone(t *testing.T) {
	votes := []quorum.Vote{
		{Node: "a", Granted: true},
		{Node: "b", Err: &driver.HeldError{Holder: "other/1"}},
		{Node: "c", Err: &driver.RefusedError{Reason: "loading"}},
		{Node: "d", Err: driver.ErrLost},
		{Node: "e", Err: io.EOF},
	}
	minority := []error{driver.ErrHeld, driver.ErrRefused, driver.ErrLost, io.EOF}
	err := error(&quorum.Error{Need: 3, Votes: votes, Detail: "b: held"})
	for _, e := range minority {
		if errors.Is(err, e) {
			t.Errorf("without a verdict it is %v, as one node said", e)
		}
	}
	var held *driver.HeldError
	if errors.As(err, &held) {
		t.Error("one node's holder shows")
	}
	if got, want := err.Error(), "1 of 5 nodes granted, 3 needed: b: held"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}

	if got, want := (&quorum.Error{Need: 3, Votes: votes, Action: "answered"}).Error(), "1 of 5 nodes answered, 3 needed"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}

	err = &quorum.Error{Need: 3, Votes: votes, Verdict: &driver.HeldError{Holder: "other/1"}}
	for _, e := range minority {
		if got, want := errors.Is(err, e), errors.Is(e, driver.ErrHeld); got != want {
			t.Errorf("with the verdict held it is %v: %t", e, got)
		}
	}
	if !errors.As(err, &held) || held.Holder != "other/1" {
		t.Errorf("the verdict's holder is %+v", held)
	}
	if got, want := err.Error(), "held by other/1 (1 of 5 nodes granted, 3 needed)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
