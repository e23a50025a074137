package bench

import (
	"os"
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// faulty is a quorum behind proxies that delay and break.
type faulty struct {
	setup   *Setup
	proxies []*fault.Proxy
}

func newFaulty(servers []*server.Server, rtts []time.Duration, ttl time.Duration) (*faulty, error) {
	setup, proxies, err := proxied(direct(servers, ttl).Nodes, ttl)
	if err != nil {
		return nil, err
	}
	for i, p := range proxies {
		p.RTT(rtts[i])
	}
	return &faulty{setup, proxies}, nil
}

func (f *faulty) close() { closeAll(f.proxies) }

func (f *faulty) last() *fault.Proxy { return f.proxies[len(f.proxies)-1] }

func (f *faulty) blackHole() (func(), error) {
	f.last().BlackHole()
	return f.heal, nil
}

// heal ends the fault, so that clients can be closed without waiting for it.
func (f *faulty) heal() { _ = f.last().Restore() } // it fails only once the proxy is closed

func (f *faulty) refuse() (func(), error) {
	return f.heal, f.last().Refuse()
}

// flapPeriod is how long a flapping node is down, and how long up.
const flapPeriod = 150 * time.Millisecond

// flap makes the last node a black hole, and well again, in turns.
func (f *faulty) flap() (func(), error) {
	end := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(flapPeriod)
		defer tick.Stop()
		for down := false; ; down = !down {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			if down {
				f.heal()
			} else {
				f.last().BlackHole()
			}
		}
	})
	return func() { close(end); running.Wait(); f.heal() }, nil
}

// median50 returns the median of samples that are not sorted.
func median50(samples []time.Duration) time.Duration {
	slices.Sort(samples)
	return samples[len(samples)/2]
}

// temporary makes a folder and returns what removes it.
func temporary() (folder string, remove func(), err error) {
	folder, err = os.MkdirTemp("", "benchmark-")
	return folder, func() { _ = os.RemoveAll(folder) }, err // it is in the temporary folder anyway
}
