//go:build unix

package server

import (
	"net/http"
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
			c := &http.Client{Transport: &http.Transport{TLSClientConfig: s.TLSConfig(), DisableKeepAlives: true}}
			resp, err := c.Get("https://" + s.Addr() + "/version")
			if err != nil {
				t.Fatalf("after %s: %v", name, err)
			}
			must(t, resp.Body.Close())
		}
	}
}
