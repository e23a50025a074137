package port

import (
	"net"
	"testing"
)

// Nobody else gets a reserved port, even if nothing listens on it.
func TestAPortIsKeptWhileNobodyListens(t *testing.T) {
	p, err := Reserve()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the server with this port may stop and start again
		l, err := net.Listen("tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if c, err := net.ListenPacket("udp", p.Addr()); err == nil {
		_ = c.Close()
		t.Fatal("another can keep it too")
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := net.ListenPacket("udp", p.Addr())
	if err != nil {
		t.Fatalf("it is kept after Close: %v", err)
	}
	_ = c.Close()
}
