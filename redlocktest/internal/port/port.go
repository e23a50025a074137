// Package port hands out TCP ports of the loopback interface for the servers of tests. A port
// stays reserved while its server is down.
package port

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// The lowest and highest port. Both are below the ports that systems give to outgoing connections.
const lowest, highest = 12000, 32000

// A Port is a TCP port that no other Port of any process gets until Close, or until the process
// ends. A bound UDP port with the same number reserves it, so that no listener is needed. So a
// server that was killed finds its port free when it starts again, and connections to a server
// that is down are refused, not accepted by another server.
type Port struct {
	Number int
	keeper net.PacketConn
}

// Reserve returns a port without a listener.
func Reserve() (*Port, error) {
	p, l, err := Listen()
	if err != nil {
		return nil, err
	}
	return p, l.Close()
}

// Listen is like Reserve, but also listens on the port.
func Listen() (*Port, net.Listener, error) {
	for range 1000 {
		p := &Port{Number: lowest + rand.IntN(highest-lowest)}
		keeper, err := net.ListenPacket("udp", p.Addr())
		if err != nil {
			continue
		}
		p.keeper = keeper
		l, err := net.Listen("tcp", p.Addr())
		if err != nil { // another program uses it without a Port
			_ = keeper.Close()
			continue
		}
		return p, l, nil
	}
	return nil, nil, errors.New("found no free port on the loopback interface")
}

// Addr returns "127.0.0.1:number".
func (p *Port) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Number)) }

// Close gives the port back. A nil Port is fine.
func (p *Port) Close() error {
	if p == nil {
		return nil
	}
	return p.keeper.Close()
}
