package nats

import "time"

// SetClock makes the backend's clock wrong.
func (b *Backend) SetClock(ahead time.Duration) {
	b.clock = func() time.Time { return time.Now().Add(ahead) }
}
