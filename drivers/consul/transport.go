package consul

import (
	"crypto/tls"
	"net/http"
	"sync"
	"time"
)

// transport sends requests to one of several agents, and to the next one after an error. It reads
// the agents' clock from their answers.
type transport struct {
	http  *http.Transport
	hosts []string

	mu     sync.Mutex
	host   int
	server time.Time     // by an answer, in whole seconds
	local  time.Time     // when it came
	took   time.Duration // from its request
}

// mostConnections is how many connections a backend has to an agent: an agent refuses more than 200
// of one address (http_max_conns_per_client). Other requests wait for one.
const mostConnections = 64

func newTransport(hosts []string, secure *tls.Config) *transport {
	return &transport{hosts: hosts, http: &http.Transport{
		TLSClientConfig: secure, ForceAttemptHTTP2: true, MaxConnsPerHost: mostConnections, MaxIdleConnsPerHost: mostConnections, IdleConnTimeout: time.Minute,
	}}
}

// RoundTrip sends a request. It never sends it twice.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.mu.Lock()
	n := t.host
	t.mu.Unlock()
	to := r.Clone(r.Context())
	to.URL.Host, to.Host = t.hosts[n], t.hosts[n]
	sent := time.Now()
	answer, err := t.http.RoundTrip(to)
	took := time.Since(sent)
	t.mu.Lock()
	defer t.mu.Unlock()
	if n == t.host && (err != nil || answer.StatusCode >= http.StatusInternalServerError) {
		t.host = (n + 1) % len(t.hosts)
	}
	if err == nil {
		if at, bad := http.ParseTime(answer.Header.Get("Date")); bad == nil && (took < time.Second || t.local.IsZero()) {
			t.server, t.local, t.took = at, time.Now(), took
		}
	}
	return answer, err
}

// clock returns this machine's time if it may be the agent's by its last answer, which tells whole
// seconds, and else the nearest time that may be.
func (t *transport) clock() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if t.local.IsZero() {
		return now
	}
	switch start := t.server.Add(now.Sub(t.local)); {
	case now.Before(start):
		return start
	case now.After(start.Add(time.Second + t.took)):
		return start.Add(time.Second + t.took)
	}
	return now
}
