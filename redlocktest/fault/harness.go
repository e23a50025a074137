package fault

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
)

// Harness returns a harness for the server at addr whose backends each reach it through a proxy
// of their own. open opens a backend with the proxy's address. Closing the backend that the
// suite gets also closes its proxy. The harness can break the link of any backend
// (Faults.Partition, Heal, Slow, DropReply and Reset), and counts the connections. If the server
// sends anything but answers, replace DropReply by that of DropAnswer. Set further
// fields if the test can do more, such as Kill and Pause of a server.Server, or Residue.
//
//	h := fault.Harness(s.Addr(), func(addr string) (driver.Backend, error) { return mydriver.New(addr) })
//	h.Faults.Kill, h.Faults.Restart = s.Kill, s.StartAgain
//	redlocktest.Run(t, h)
func Harness(addr string, open func(addr string) (driver.Backend, error)) redlocktest.Harness {
	return HarnessOf([]string{addr}, func(addrs []string) (driver.Backend, error) { return open(addrs[0]) })
}

// HarnessOf is Harness for backends that talk to several servers: a proxy for each, in the
// order of addrs. A fault breaks all links of a backend.
func HarnessOf(addrs []string, open func(addrs []string) (driver.Backend, error)) redlocktest.Harness {
	all := &links{open: map[*Proxy]bool{}}
	return redlocktest.Harness{
		Open:        func() (driver.Backend, error) { return all.connect(addrs, open) },
		Connections: all.count,
		Faults: &redlocktest.Faults{
			Partition: func(b driver.Backend) error { return eachProxy(b, (*Proxy).Pause) },
			Heal:      func(b driver.Backend) error { return eachProxy(b, (*Proxy).Resume) },
			Slow: func(b driver.Backend, d time.Duration) error {
				return eachProxy(b, func(p *Proxy) { p.Delay(ToClient, d, 0) })
			},
			DropReply: func(b driver.Backend) error { return eachProxy(b, func(p *Proxy) { p.Judge(ToClient, Lose(1, Cut)) }) },
			Reset:     func(b driver.Backend) error { return eachProxy(b, (*Proxy).CutAll) },
		},
	}
}

// Unwrap returns the backend that open made inside b, a backend of a Harness.
func Unwrap(b driver.Backend) driver.Backend {
	if l := linkedOf(b); l != nil {
		return l.Backend
	}
	return b
}

// linkedOf returns the wrapper of a Harness in b, or nil.
func linkedOf(b driver.Backend) *linkedBackend {
	if w, ok := b.(wrapped); ok {
		return w.layer()
	}
	return nil
}

// links has the open proxies of a harness.
type links struct {
	mu   sync.Mutex
	open map[*Proxy]bool
}

// count returns how many connections the clients keep.
func (l *links) count() (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for p := range l.open {
		n += p.clients()
	}
	return n, nil
}

func (l *links) add(p *Proxy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[p] = true
}

func (l *links) close(proxies []*Proxy) (err error) {
	for _, p := range proxies {
		err = errors.Join(err, p.Close())
		l.mu.Lock()
		delete(l.open, p)
		l.mu.Unlock()
	}
	return err
}

// connect opens a backend behind proxies.
func (l *links) connect(addrs []string, open func([]string) (driver.Backend, error)) (driver.Backend, error) {
	linked := &linkedBackend{links: l}
	via := make([]string, len(addrs))
	for i, addr := range addrs {
		p, err := Start(addr)
		if err != nil {
			return nil, errors.Join(err, l.close(linked.all))
		}
		l.add(p)
		linked.all, via[i] = append(linked.all, p), p.Addr()
	}
	b, err := open(via)
	if err != nil {
		return nil, errors.Join(err, l.close(linked.all))
	}
	linked.Backend = b
	return withOptional(linked, b), nil
}

// linkedBackend is a backend and its proxies.
type linkedBackend struct {
	driver.Backend
	links *links
	all   []*Proxy
}

func (b *linkedBackend) layer() *linkedBackend { return b }

// Close closes the backend, and then its proxies.
func (b *linkedBackend) Close() error { return errors.Join(b.Backend.Close(), b.links.close(b.all)) }

// String returns the backend's String.
func (b *linkedBackend) String() string {
	if s, ok := b.Backend.(fmt.Stringer); ok {
		return s.String()
	}
	return b.Info().Name
}
