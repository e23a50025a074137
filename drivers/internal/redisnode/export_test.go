package redisnode

import "time"

// Idle returns a channel that is closed when no goroutine of n is left.
func (n *Node) Idle() <-chan struct{} { return n.wg.Idle() }

// KeepFor lets the lock be kept for the waiters of n for this long, however busy the machine is.
func (n *Node) KeepFor(d time.Duration) {
	n.queue.mu.Lock()
	defer n.queue.mu.Unlock()
	n.queue.least, n.queue.most = d, d
}
