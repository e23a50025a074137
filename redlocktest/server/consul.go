package server

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// consulVersion is the version of Consul that redlocktest/install.bash builds into the user's cache:
// Debian has none, and this is the last one under the MPL.
const consulVersion = "1.16.3"

// Consul starts a Consul server for a test, or a cluster of this many, as Redis does. Its build takes
// minutes, so outside of the deep depth a test is skipped where it is missing, even if CI is set.
func Consul(t testing.TB, members int, opts ...Option) *Group {
	t.Helper()
	if !HasConsul() && !IsDeep() {
		t.Skip("needs consul: run redlocktest/all.bash --install --deep, which builds it")
	}
	start := func(ctx context.Context, cfg Config) (*Group, error) { return StartConsul(ctx, members, cfg) }
	return groupFor(t, start, KindConsul, opts)
}

// HasConsul reports whether Consul is installed.
func HasConsul() bool {
	_, err := findConsul()
	return err == nil
}

// StartConsul starts a Consul server, or a cluster of this many, and returns when all of them serve.
// With a password the server has ACLs that deny everything to others, and the password is the token
// of the management. A server that was killed starts again with its stored data. To forget
// everything, kill all and call Group.RestartEmpty.
func StartConsul(ctx context.Context, members int, cfg Config) (*Group, error) {
	cfg.Kind = KindConsul
	return startEnsemble(ctx, members, cfg, func(all []*Server) error {
		peers := make([]string, len(all))
		for i, s := range all {
			peers[i] = strconv.Quote("127.0.0.1:" + strconv.Itoa(s.election))
		}
		for i, s := range all {
			s.cfg.member = i
			s.cfg.ensemble = fmt.Sprintf("bootstrap_expect = %d\nretry_join = [%s]\n", len(all), strings.Join(peers, ", "))
		}
		return nil
	})
}

// findConsul returns the path of a Consul.
func findConsul() (string, error) {
	for _, path := range placesOrCache(KindConsul, consulVersion) {
		if strings.HasPrefix(version(path), "Consul v1.") {
			return path, nil
		}
	}
	return "", &MissingError{Program: string(KindConsul), Package: "built from its Go module; add --deep"}
}

func commandConsul(s *Server) ([]string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "server = true\nnode_name = \"m%d\"\nnode_id = \"00000000-0000-4000-8000-%012d\"\ndata_dir = %q\n", s.cfg.member, s.cfg.member, s.dataDir())
	b.WriteString("bind_addr = \"127.0.0.1\"\nclient_addr = \"127.0.0.1\"\nretry_interval = \"1s\"\ndisable_update_check = true\nperformance { raft_multiplier = 1 }\n")
	b.WriteString(s.cfg.ensemble)
	http, https := s.port, -1
	if s.certs != nil {
		http, https = -1, s.port
		fmt.Fprintf(&b, "tls { https { cert_file = %q\nkey_file = %q\nca_file = %q\nverify_incoming = %v } }\n", s.certs.certFile, s.certs.keyFile, s.certs.caFile, s.cfg.ClientCerts)
	}
	fmt.Fprintf(&b, "ports { http = %d\nhttps = %d\nserver = %d\nserf_lan = %d\nserf_wan = -1\ndns = -1\ngrpc = -1\ngrpc_tls = -1 }\n", http, https, s.bus, s.election)
	if p := s.cfg.Password; p != "" {
		fmt.Fprintf(&b, "acl { enabled = true\ndefault_policy = \"deny\"\ntokens { initial_management = %q\nagent = %q } }\n", p, p)
	}
	err := s.config(&b, "%s = %s\n")
	return append([]string{s.binary, "agent", "-config-format=hcl", "-config-file=" + s.configFile()}, s.cfg.Args...), err
}

// readyConsul asks the cluster for this server's entry in the catalogue, which its leader makes
// before anybody can have a session there.
func readyConsul(ctx context.Context, s *Server, _ *process) error {
	question := fmt.Sprintf("GET /v1/catalog/node/m%d?consistent HTTP/1.0\r\nX-Consul-Token: %s\r\n\r\n", s.cfg.member, s.cfg.Password)
	answer, err := s.ask(ctx, true, question, 1<<16)
	if err == nil && !strings.Contains(answer, `"Node":{`) {
		status, _, _ := strings.Cut(answer, "\r\n")
		err = fmt.Errorf("the catalogue answers %q", status)
	}
	return err
}
