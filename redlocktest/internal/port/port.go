// Package port hands out TCP ports of the loopback interface for the servers of tests, and
// reserves each while its server is down, too.
package port

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// Lowest and highest port: below those that systems give to outgoing connections.
const lowest, highest = 12000, 32000

// A Port is a TCP port that no other Port of any process has until Close, or until the
// process ends. The UDP port of the same number reserves it, so nobody has to listen on it. A
// server that was killed finds its port free when it starts again, and connections to a server
// that is down are refused, not accepted by another server.
type Port struct {
	Number int
	keeper net.PacketConn
}

// Reserve returns a port on which nobody listens.
func Reserve() (*Port, error) {
	p, l, err := Listen()
	if err != nil {
		return nil, err
	}
	return p, l.Close()
}

// Listen is Reserve for a program that listens itself, at once.
func Listen() (*Port, net.Listener, error) {
	for range 1000 {
		p := &Port{Number: lowest + rand.IntN(highest-lowest)}
		keeper, err := net.ListenPacket("udp", p.Addr())
		if err != nil {
			continue
		}
		p.keeper = keeper
		l, err := net.Listen("tcp", p.Addr())
		if err != nil { // it belongs to somebody who knows nothing of Ports
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
