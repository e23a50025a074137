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
// of their own. open opens a backend with the proxy's address: a pointer, or another value that can be
// compared. The suite closes the proxy after the backend, at the end of its case (Closed). The
// harness can break the link of any backend (Faults.Partition, Heal, Slow, DropReply and Reset), and
// counts the connections. If the server
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
	faults := &redlocktest.Faults{
		Partition: func(b driver.Backend) error { return eachProxy(b, (*Proxy).Pause) },
		Heal:      func(b driver.Backend) error { return eachProxy(b, (*Proxy).Resume) },
		Slow: func(b driver.Backend, d time.Duration) error {
			return eachProxy(b, func(p *Proxy) { p.Delay(ToClient, d, 0) })
		},
		DropReply: func(b driver.Backend) error { return eachProxy(b, func(p *Proxy) { p.Judge(ToClient, Lose(1, Cut)) }) },
		Reset:     func(b driver.Backend) error { return eachProxy(b, (*Proxy).CutAll) },
	}
	return redlocktest.Harness{
		Open: func() (driver.Backend, error) { return connect(faults, addrs, open) },
		Closed: func(b driver.Backend) error {
			if l, known := linksOf.LoadAndDelete(b); known {
				return l.(*links).close()
			}
			return nil
		},
		Connections: func() (n int, err error) {
			linksOf.Range(func(_, l any) bool {
				if l := l.(*links); l.faults == faults {
					for _, p := range l.proxies {
						n += p.clients()
					}
				}
				return true
			})
			return n, nil
		},
		Faults: faults,
	}
}

// linksOf has the links of every backend that a harness has opened and the suite has not closed: a
// wrapper of the backend would hide its optional interfaces.
var linksOf sync.Map

// links are the proxies of a backend.
type links struct {
	faults  *redlocktest.Faults // of the harness that opened it
	proxies []*Proxy
}

func (l *links) close() (err error) {
	for _, p := range l.proxies {
		err = errors.Join(err, p.Close())
	}
	return err
}

// connect opens a backend behind proxies.
func connect(faults *redlocktest.Faults, addrs []string, open func([]string) (driver.Backend, error)) (driver.Backend, error) {
	l, via := &links{faults: faults}, make([]string, len(addrs))
	for i, addr := range addrs {
		p, err := Start(addr)
		if err != nil {
			return nil, errors.Join(err, l.close())
		}
		l.proxies, via[i] = append(l.proxies, p), p.Addr()
	}
	b, err := open(via)
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	linksOf.Store(b, l)
	return b, nil
}

// eachProxy calls f with the proxies of a backend of a Harness.
func eachProxy(b driver.Backend, f func(*Proxy)) error {
	l, known := linksOf.Load(b)
	if !known {
		return fmt.Errorf("%T is not a backend that this harness has opened", b)
	}
	for _, p := range l.(*links).proxies {
		f(p)
	}
	return nil
}
