//go:build unix

package server

import (
	"crypto/tls"
	"errors"
	"testing"
)

func TestEtcdMembersServeAfterAKillAndARestartWithoutMemory(t *testing.T) {
	t.Parallel()
	forOtherModules(t)
	g := Etcd(t, 3, WithTLS(), WithClientCerts())
	for name, again := range map[string]func() error{"Kill and Start": g.Start, "RestartEmpty": g.RestartEmpty} {
		must(t, g.Kill())
		must(t, again())
		for _, s := range g.Nodes {
			c, err := tls.Dial("tcp", s.Addr(), s.TLSConfig())
			must(t, err)
			if err := errors.Join(healthy(c), c.Close()); err != nil {
				t.Errorf("after %s: %v", name, err)
			}
		}
	}
}
