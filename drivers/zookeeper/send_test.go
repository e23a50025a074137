package zookeeper

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A server that reads nothing holds up requests, which are sent one after another, no longer than one
// that answers nothing.
func TestAServerThatReadsNothingHoldsUpRequestsForABoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Backend{opt: Options{CallTimeout: time.Minute}}
		near, far := net.Pipe() // nothing is written until it is read
		defer far.Close()       //nolint:errcheck // a pipe
		l := &link{s: &session{b: b}, conn: near}
		for _, want := range []time.Duration{b.silence(), 0} { // then the connection has ended
			start := time.Now()
			if _, err := l.send(request{op: opGet}); err != nil {
				t.Error(err)
			}
			if took := time.Since(start); took != want {
				t.Errorf("a request was held up for %v, want %v", took, want)
			}
		}
	})
}
