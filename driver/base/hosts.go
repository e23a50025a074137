package base

import (
	"net/http"
	"sync/atomic"
	"time"
)

// Hosts sends HTTP requests to one of several servers, and to the next one after an error. It reads the
// servers' clock from their answers.
type Hosts struct {
	Names     []string // "host:port"
	Transport *http.Transport
	Now       func() time.Time // this machine's clock

	turn atomic.Uint32 // of the servers
	date atomic.Pointer[date]
}

// A date is a server's time in whole seconds, by an answer to a request of this time.
type date struct {
	server, sent time.Time
	took         time.Duration
}

// RoundTrip sends a request once, and ignores the host that it names.
func (h *Hosts) RoundTrip(r *http.Request) (*http.Response, error) {
	turn := h.turn.Load()
	to := r.Clone(r.Context())
	to.Host = h.Names[int(turn)%len(h.Names)]
	to.URL.Host = to.Host
	sent := time.Now()
	answer, err := h.Transport.RoundTrip(to)
	if err != nil || answer.StatusCode >= http.StatusInternalServerError {
		h.turn.CompareAndSwap(turn, turn+1)
	}
	if err != nil {
		return nil, err
	}
	at, bad := http.ParseTime(answer.Header.Get("Date"))
	if took := time.Since(sent); bad == nil && (took < time.Second || h.date.Load() == nil) {
		h.date.Store(&date{at, sent, took})
	}
	return answer, nil
}

// Clock returns this machine's time if it may be the servers' by the last quick answer, which tells whole
// seconds, and else the nearest time that may be.
func (h *Hosts) Clock() time.Time {
	now, d := h.Now(), h.date.Load()
	if d == nil {
		return now
	}
	passed := time.Since(d.sent)
	earliest, latest := d.server.Add(passed-d.took), d.server.Add(passed+time.Second)
	switch {
	case now.Before(earliest):
		return earliest
	case now.After(latest):
		return latest
	}
	return now
}
