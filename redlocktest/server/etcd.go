package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
)

// StartEtcd starts an etcd cluster of this many members, and returns when all of them serve.
// A member that was killed starts again with its stored data. To forget everything, kill
// all members and call Group.RestartEmpty.
func StartEtcd(ctx context.Context, members int, cfg Config) (*Group, error) {
	cfg.Kind = KindEtcd
	return startEnsemble(ctx, members, cfg, func(all []*Server) error {
		names := make([]string, len(all))
		for i, s := range all {
			addr, err := cfg.peerAddr(-1, i, s.bus)
			if err != nil {
				return err
			}
			s.cfg.peerURL = "http://" + addr // the members speak without TLS
			names[i] = fmt.Sprintf("m%d=%s", i, s.cfg.peerURL)
		}
		for i, s := range all {
			s.cfg.member, s.cfg.ensemble = i, strings.Join(names, ",")
		}
		return nil
	})
}

// peerAddr is the address by which a member reaches a port of another one.
func (c *Config) peerAddr(from, to, port int) (string, error) {
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if c.PeersVia == nil || from == to {
		return addr, nil
	}
	return c.PeersVia(from, to, addr)
}

// startEnsemble starts a server, or several that need each other to serve. It calls introduce once all
// addresses are known, to give each server all of them. If a port is taken meanwhile, it begins anew.
func startEnsemble(ctx context.Context, members int, cfg Config, introduce func([]*Server) error) (*Group, error) {
	kind, err := cfg.flavour()
	if err != nil {
		return nil, err
	}
	binary, err := cfg.program()
	if err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		g, err := startMembers(ctx, members, introduce, func() *Server { return &Server{cfg: cfg, kind: kind, binary: binary} })
		if err == nil {
			return g, nil
		}
		inUse := false
		for _, s := range g.Nodes {
			inUse = inUse || s.addressInUse()
		}
		err = errors.Join(err, g.Close())
		if !inUse || try == 9 {
			return nil, fmt.Errorf("start %d × %s: %w", members, cfg.Kind, err)
		}
	}
}

func startMembers(ctx context.Context, members int, introduce func([]*Server) error, member func() *Server) (*Group, error) {
	g := &Group{}
	for range members {
		s := member()
		if err := s.makeFolder(); err != nil {
			return g, err
		}
		g.Nodes = append(g.Nodes, s)
		if len(g.Nodes) > 1 {
			s.cfg.authority = g.Nodes[0].certs
		}
		if err := errors.Join(s.prepare(), s.takePorts()); err != nil {
			return g, err
		}
	}
	if err := introduce(g.Nodes); err != nil {
		return g, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return g, g.each(func(s *Server) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := s.start(ctx); err != nil {
			return fmt.Errorf("%w\n%s", err, s.LogTail(20))
		}
		return nil
	})
}

// each calls f for all nodes at once.
func (g *Group) each(f func(*Server) error) error {
	errs := make([]error, len(g.Nodes))
	var wg sync.WaitGroup
	for i, s := range g.Nodes {
		wg.Go(func() { errs[i] = f(s) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Kill kills all nodes; see Server.Kill.
func (g *Group) Kill() error { return g.each((*Server).Kill) }

// KillMajority kills so many nodes that the others are no majority, and other ones each time, and
// returns when the others do not serve. To start them again takes less time than after Kill.
func (g *Group) KillMajority() error {
	n, first := len(g.Nodes), int(g.kills.Add(1))
	var killed, left Group
	for i := range n {
		some := &killed
		if i >= n/2+n%2 {
			some = &left
		}
		some.Nodes = append(some.Nodes, g.Nodes[(first+i)%n])
	}
	kind := g.Nodes[0].cfg.Kind
	if err := killed.Kill(); err != nil || kind != KindZooKeeper && kind != KindNATS && kind != KindConsul || g.Nodes[0].certs != nil {
		return err
	}
	// A leader of ZooKeeper looks only twice per tick whether it has a majority, one of NATS every
	// ten seconds, and one of Consul every half second; they serve until then.
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return left.each(func(s *Server) error {
		return poll(ctx, func(ctx context.Context) error {
			if s.kind.ready(ctx, s, nil) == nil {
				return fmt.Errorf("%s serves without a majority", s.Addr())
			}
			return nil
		})
	})
}

// Start starts all nodes again that do not run; see Server.Start.
func (g *Group) Start() error {
	return g.each(func(s *Server) error {
		if s.Pid() != 0 {
			return nil
		}
		return s.Start()
	})
}

// RestartEmpty kills all nodes and starts them again without their stored data.
func (g *Group) RestartEmpty() error {
	if err := g.Kill(); err != nil {
		return err
	}
	return g.each((*Server).RestartEmpty)
}

// StartAgain starts killed nodes again; see Server.StartAgain.
func (g *Group) StartAgain(memory bool) error {
	if memory {
		return g.Start()
	}
	return g.RestartEmpty()
}

// Pause stops all nodes; see Server.Pause.
func (g *Group) Pause() error { return g.each((*Server).Pause) }

// Resume lets all nodes go on; see Server.Resume.
func (g *Group) Resume() error { return g.each((*Server).Resume) }

// prepareTLS makes the certificates of a server with TLS, of the group's authority if there
// is one.
func (s *Server) prepareTLS() (err error) {
	switch {
	case !s.cfg.TLS:
	case s.cfg.authority != nil:
		s.certs, err = s.cfg.authority.copyTo(s.dir)
	default:
		s.certs, err = newCertificates(s.dir)
	}
	return err
}

func commandEtcd(s *Server) ([]string, error) {
	client := "http://" + s.Addr()
	if s.certs != nil {
		client = "https://" + s.Addr()
	}
	argv := []string{
		s.binary, "--name", "m" + strconv.Itoa(s.cfg.member), "--data-dir", s.dataDir(),
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", "http://127.0.0.1:" + strconv.Itoa(s.bus), "--initial-advertise-peer-urls", s.cfg.peerURL,
		"--initial-cluster", s.cfg.ensemble, "--initial-cluster-token", "redlock",
		"--logger", "zap", "--log-outputs", "stderr",
	}
	if s.certs != nil {
		argv = append(argv, "--cert-file", s.certs.certFile, "--key-file", s.certs.keyFile, "--trusted-ca-file", s.certs.caFile)
		if s.cfg.ClientCerts {
			argv = append(argv, "--client-cert-auth")
		}
	}
	for _, x := range s.cfg.Settings {
		argv = append(argv, "--"+x.Name, x.Value)
	}
	return append(argv, s.cfg.Args...), nil
}

// readyEtcd asks the member whether it has a leader, without net/http, which would make each test
// binary larger.
func readyEtcd(ctx context.Context, s *Server, _ *process) error {
	answer, err := s.ask(ctx, true, "GET /health HTTP/1.0\r\n\r\n", 1<<16)
	if _, status, _ := strings.Cut(answer, " "); err == nil && !strings.HasPrefix(status, "200 ") {
		err = fmt.Errorf("/health answers %q", answer)
	}
	return err
}
