package fault

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is one client's connection, and the proxy's connection to the server for it.
type link struct {
	proxy *Proxy
	id    int64
	ctx   context.Context // ends with the link
	end   context.CancelFunc
	muted [2]atomic.Bool // bytes to that side are discarded
	left  atomic.Bool    // the client has closed it; the server may learn of that later

	mu    sync.Mutex
	sides [2]net.Conn // the receivers of the two directions: server, client
	dead  bool
}

func newLink(p *Proxy, id int64, client net.Conn) *link {
	l := &link{proxy: p, id: id}
	l.ctx, l.end = context.WithCancel(context.Background())
	l.sides[ToClient] = client
	return l
}

// mute discards bytes in this direction from now on.
func (l *link) mute(d Direction) { l.muted[d].Store(true) }

// cut resets both connections.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
	l.end()
	for _, c := range l.sides {
		if c != nil {
			reset(c)
		}
	}
}

// closeSide ends the connection of one side in order.
func (l *link) closeSide(d Direction) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.sides[d]; c != nil {
		_ = c.Close() // the other side must not learn of it
	}
}

// reset closes a connection so that the peer gets a reset.
func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0) // it may be closed already
	_ = c.Close()
}

// run connects to the server and forwards in both directions until both have ended.
func (l *link) run() {
	defer l.proxy.running.Done()
	defer l.proxy.forget(l)
	defer l.cut() // the rest of the delay
	client := l.sides[ToClient]
	server, err := l.dial()
	if err != nil {
		return
	}
	var both sync.WaitGroup
	if server == nil { // a black hole from the start
		l.swallow(client)
		return
	}
	both.Go(func() { l.pump(ToServer, client, server) })
	both.Go(func() { l.pump(ToClient, server, client) })
	both.Wait()
}

// dial connects to the server. It returns nil and no error if the proxy is a black hole.
func (l *link) dial() (net.Conn, error) {
	if l.muted[ToServer].Load() && l.muted[ToClient].Load() {
		return nil, nil
	}
	var d net.Dialer
	c, err := d.DialContext(l.ctx, "tcp", l.proxy.server())
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		reset(c)
		return nil, net.ErrClosed
	}
	l.sides[ToServer] = c
	return c, nil
}

// swallow reads and discards until the peer or the link ends.
func (l *link) swallow(c net.Conn) {
	_, _ = io.Copy(io.Discard, c) // its end is all that matters
}

// queued bounds how many chunks, of at most chunkSize bytes, one direction holds back. When it
// is reached the sender must wait, as in a full network.
const (
	queued    = 256
	chunkSize = 16 << 10
)

// packet is a chunk on its way; nil data is the sender's end.
type packet struct {
	data  []byte
	due   time.Time // zero: at once
	reset bool      // the sender did not end in order
}

// pump forwards one direction until the sender ends.
func (l *link) pump(d Direction, from, to net.Conn) {
	way := make(chan packet, queued)
	var reader sync.WaitGroup
	reader.Go(func() { l.read(d, from, way) })
	defer reader.Wait()
	if !l.write(d, to, way) {
		l.cut()
	}
	for range way { // lets the reader go on to its end
	}
}

// read reads chunks and computes the time at which each is due.
func (l *link) read(d Direction, from net.Conn, way chan<- packet) {
	defer close(way)
	for {
		buf := make([]byte, chunkSize)
		n, err := from.Read(buf)
		if n > 0 {
			way <- packet{data: buf[:n], due: l.proxy.conditionsOf(d).due()}
		}
		if err != nil {
			if d == ToServer {
				l.left.Store(true)
			}
			way <- packet{reset: !errors.Is(err, io.EOF), due: l.proxy.conditionsOf(d).due()}
			return
		}
	}
}

// due returns when bytes that arrive now must be forwarded; zero: at once. (The writer sends in order,
// so that jitter overtakes nothing.)
func (w conditions) due() (due time.Time) {
	if w.delay <= 0 && w.jitter <= 0 {
		return due
	}
	due = time.Now().Add(w.delay)
	if w.jitter > 0 {
		due = due.Add(rand.N(w.jitter))
	}
	return due
}

// write sends chunks when they are due. It reports false if the link must be cut.
func (l *link) write(d Direction, to net.Conn, way <-chan packet) bool {
	var clock clock
	defer clock.close()
	for p := range way {
		if !p.due.IsZero() && clock.sleepUntil(l.ctx, p.due) != nil {
			return false
		}
		if !l.waitGate() {
			return false
		}
		if p.data == nil {
			return l.finish(d, to, p.reset)
		}
		if l.muted[d].Load() {
			continue
		}
		if !l.forward(d, to, p.data) {
			return false
		}
	}
	return true
}

// waitGate waits while the proxy is paused.
func (l *link) waitGate() bool {
	for gate := l.proxy.gate(); gate != nil; gate = l.proxy.gate() {
		select {
		case <-gate:
		case <-l.ctx.Done():
			return false
		}
	}
	return true
}

// finish passes the sender's end on. A muted receiver does not learn of it; if the other
// direction is muted too, the link ends.
func (l *link) finish(d Direction, to net.Conn, broken bool) bool {
	if l.muted[d].Load() {
		return true
	}
	if broken {
		return false
	}
	_ = to.(*net.TCPConn).CloseWrite() // the receiver may be gone
	return true
}

// forward sends the bytes that the judge lets pass, and applies the judge's action.
func (l *link) forward(d Direction, to net.Conn, data []byte) bool {
	pass, then := len(data), Pass
	if judge := l.proxy.conditionsOf(d).judge; judge != nil {
		pass, then = judge(l.id, data)
	}
	// Before the write, so that it has happened when the receiver gets the last bytes.
	switch then {
	case Mute:
		l.mute(d)
	case Freeze:
		l.mute(ToServer)
		l.mute(ToClient)
	}
	if pass > 0 {
		l.proxy.stats[d].Add(int64(pass))
		n, err := to.Write(data[:pass])
		l.proxy.stats[d].Add(int64(n - pass))
		if err != nil {
			return l.muted[d].Load() // HalfOpen closed it
		}
	}
	if then == End {
		l.finishBoth()
	}
	return then != Cut
}

// finishBoth ends the stream to both sides.
func (l *link) finishBoth() {
	l.mute(ToServer)
	l.mute(ToClient)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, side := range l.sides {
		if half, ok := side.(*net.TCPConn); ok { // there may be no server yet
			_ = half.CloseWrite() // it may be gone
		}
	}
}
