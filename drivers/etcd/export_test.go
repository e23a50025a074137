package etcd

import "time"

// SetClock makes b's own clock wrong.
func (b *Backend) SetClock(ahead time.Duration) {
	b.now = func() time.Time { return time.Now().Add(ahead) }
}

// RevokesLiveLeases is revokesLiveLeases, for a test.
var RevokesLiveLeases = revokesLiveLeases
