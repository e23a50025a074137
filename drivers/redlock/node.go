package redlock

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
)

// node is one member of the quorum, with its breaker and the requests under way to it. It knows
// nothing of the quorum.
//
// A request that the node cannot start is a blocking call, which needs a goroutine. A node that
// never answers costs those of its timeout at most, until its breaker opens.
type node struct {
	index   int
	name    string // without any secret
	backend driver.Backend
	async   async.Backend // the same; nil: every call is made by its blocking method
	notify  func(driver.Notice)
	calls   async.Tracker // under way

	described atomic.Pointer[quorum.Info] // the quorum in the last request
	server    atomic.Pointer[string]      // the server process that answered last
	skewed    atomic.Bool                 // its clock disagreed when it last counted
	tripped   atomic.Bool                 // the breaker is open
	late      atomic.Bool                 // its last request timed out

	clockMu   sync.Mutex
	clock     reading // of its last answer
	jumps     int64   // of the client's clock, then
	terms     quorum.Terms
	termsAt   boot.Instant // from before their last confirmation
	remembers bool         // terms are known

	mu       sync.Mutex
	timeouts int       // in a row
	since    time.Time // when the first of these timeouts came
	probeAt  time.Time // when an open breaker lets the next request through
}

const (
	tripAfter  = 5 // this many timeouts in a row over this long open the breaker, because many requests end at once
	tripTime   = 200 * time.Millisecond
	probeEvery = time.Second // an open breaker lets a request through
)

// errSkipped is why a node is not asked.
var errSkipped = errors.New("skipped, since it keeps timing out")

func newNode(i int, nb driver.Backend) *node {
	n := &node{index: i, backend: nb}
	if s, ok := nb.(fmt.Stringer); ok {
		n.name = s.String()
	} else {
		n.name = fmt.Sprintf("%s#%d", nb.Info().Name, i+1)
	}
	if a, ok := nb.(async.Backend); ok && a.Starts(nb) {
		n.async = a
	}
	return n
}

// says returns an error's text that begins with the node's name, once.
func (n *node) says(err error) string {
	if text := err.Error(); n.nameless(err) != text {
		return text
	}
	return n.name + ": " + err.Error()
}

// nameless returns an error's text without the node's name at its beginning.
func (n *node) nameless(err error) string {
	text := err.Error()
	for _, after := range []string{": ", " "} {
		if rest, ok := strings.CutPrefix(text, n.name+after); ok {
			return rest
		}
	}
	return text
}

// probes reports whether a request to a node that is skipped is a probe.
func (n *node) probes() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	if now.Before(n.probeAt) {
		return false
	}
	n.probeAt = now.Add(probeEvery)
	return true
}

// report tells the breaker how a request ended.
func (n *node) report(timedOut bool) {
	if !timedOut && !n.late.Load() { // nor has the last one
		return
	}
	n.mu.Lock()
	now, was, is := time.Now(), n.tripped.Load(), false
	if !timedOut {
		n.timeouts = 0
	} else {
		if n.timeouts++; n.timeouts == 1 {
			n.since = now
		}
		is = was || n.timeouts >= tripAfter && now.Sub(n.since) >= tripTime
	}
	if is && !was {
		n.probeAt = now.Add(probeEvery)
	}
	n.late.Store(timedOut)
	n.tripped.Store(is)
	n.mu.Unlock()
	switch {
	case is && !was:
		n.notify(driver.Notice{Kind: quorum.NoticeNodeSkipped, Node: n.name, Detail: fmt.Sprintf("%d requests in a row timed out: it is skipped until a probe succeeds", tripAfter)})
	case was && !is:
		n.notify(driver.Notice{Kind: quorum.NoticeNodeRestored, Node: n.name, Detail: "a probe succeeded: it is asked again"})
	}
}
