package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// natsVersion is the version of nats-server that redlocktest/install.bash builds into the user's
// cache, since Debian's is too old.
const natsVersion = "2.15.2"

// NATS starts a nats-server with JetStream for a test, or a cluster of this many, as Redis does.
func NATS(t testing.TB, members int, opts ...Option) *Group {
	t.Helper()
	start := func(ctx context.Context, cfg Config) (*Group, error) { return StartNATS(ctx, members, cfg) }
	return groupFor(t, start, KindNATS, opts)
}

// StartNATS starts a nats-server with JetStream, or a cluster of this many, and returns when all of
// them serve. A server that was killed starts again with its stored data. To forget everything,
// kill all and call Group.RestartEmpty.
func StartNATS(ctx context.Context, members int, cfg Config) (*Group, error) {
	cfg.Kind = KindNATS
	return startEnsemble(ctx, members, cfg, func(all []*Server) error {
		if len(all) == 1 {
			return nil
		}
		routes := make([]string, len(all))
		for i, s := range all {
			addr, err := cfg.peerAddr(-1, i, s.bus)
			if err != nil {
				return err
			}
			routes[i] = "nats://" + addr
		}
		for i, s := range all {
			s.cfg.member, s.cfg.ensemble = i, strings.Join(routes, ",")
		}
		return nil
	})
}

// findNATS returns the path of a nats-server that keeps TTLs of messages.
func findNATS() (string, error) {
	for _, path := range placesOrCache(KindNATS, natsVersion) {
		if _, v, _ := strings.Cut(version(path), ": v"); strings.HasPrefix(v, "2.") && minorOf(v) >= 11 {
			return path, nil
		}
	}
	return "", &MissingError{Program: string(KindNATS) + " 2.11 or newer", Package: "built from its Go module"}
}

func minorOf(version string) int {
	minor, err := strconv.Atoi(strings.Split(version, ".")[1])
	if err != nil {
		return 0
	}
	return minor
}

func commandNATS(s *Server) ([]string, error) {
	argv := []string{s.binary, "-n", "m" + strconv.Itoa(s.cfg.member), "-a", "127.0.0.1", "-p", strconv.Itoa(s.port), "-js", "-sd", filepath.Join(s.dir, "data")}
	if s.cfg.ensemble != "" {
		argv = append(argv, "--cluster_name", "redlock", "--cluster", "nats://127.0.0.1:"+strconv.Itoa(s.bus),
			"--routes", s.cfg.ensemble, "--no_advertise")
	}
	if s.certs != nil {
		argv = append(argv, "--tls", "--tlscert", s.certs.certFile, "--tlskey", s.certs.keyFile)
		if s.cfg.ClientCerts {
			argv = append(argv, "--tlsverify", "--tlscacert", s.certs.caFile)
		}
	}
	return append(argv, s.cfg.Args...), nil
}

// readyNATS asks JetStream for its streams, which it names as soon as it has a leader. With TLS or a
// password it only waits for the greeting.
func readyNATS(ctx context.Context, s *Server, _ *process) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", s.Addr()) // the greeting comes before TLS
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // it was only queried
	if deadline, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(deadline); err != nil {
			return err
		}
	}
	in := bufio.NewReader(c)
	greeting, err := in.ReadString('\n')
	if err != nil || s.certs != nil || strings.Contains(greeting, `"auth_required":true`) {
		return err
	}
	if _, err := fmt.Fprint(c, "CONNECT {\"verbose\":false}\r\nSUB ready 1\r\nPUB $JS.API.STREAM.NAMES ready 0\r\n\r\n"); err != nil {
		return err
	}
	for {
		line, err := in.ReadString('\n')
		switch {
		case err != nil:
			return err
		case strings.HasPrefix(line, "-ERR"):
			return errors.New(strings.TrimSpace(line))
		case strings.HasPrefix(line, "MSG "):
			answer, err := in.ReadString('\n')
			if err == nil && strings.Contains(answer, `"error"`) {
				err = errors.New(strings.TrimSpace(answer))
			}
			return err
		}
	}
}

// NATSProgram returns the path of nats-server, for tests that start it by Command.
func NATSProgram(t testing.TB) string {
	t.Helper()
	path, err := findNATS()
	require(t, err)
	return path
}
