package server_test

import (
	"testing"

	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestDeepSkipsOutsideOfTheDeepDepth(t *testing.T) {
	for _, c := range []struct {
		value string
		runs  bool
	}{{"", false}, {"1", true}} {
		t.Setenv("REDLOCK_DEEP", c.value)
		ran := false
		t.Run("REDLOCK_DEEP="+c.value, func(t *testing.T) {
			server.Deep(t)
			ran = true
		})
		if ran != c.runs || server.IsDeep() != c.runs {
			t.Errorf("with REDLOCK_DEEP=%q it ran: %v, IsDeep: %v", c.value, ran, server.IsDeep())
		}
	}
}
