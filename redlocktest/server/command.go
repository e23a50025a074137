package server

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// KindCommand is any server, started by a command line: see Command.
const KindCommand Kind = "command"

// Command starts a server that this package does not know. It can be killed, paused (SIGSTOP),
// stopped, and started again on the same port, with or without its data.
//
// In argv {port} and {port2} stand for two free ports of the loopback interface, and {data} for
// a folder of the server's own, which RestartEmpty empties. The program must stay in the
// foreground. ready returns nil once the server at addr serves, and is called again until then.
// A nil ready waits until addr accepts a connection.
//
//	s := server.Command(t, []string{"consul", "agent", "-dev", "-http-port={port}", "-data-dir={data}"}, nil)
func Command(t testing.TB, argv []string, ready func(ctx context.Context, addr string) error, opts ...Option) *Server {
	t.Helper()
	return StartFor(t, KindCommand, append([]Option{func(c *Config) { c.Command, c.Ready = argv, ready }}, opts...)...)
}

func commandAny(s *Server) ([]string, error) {
	if err := os.MkdirAll(s.dataDir(), 0o700); err != nil {
		return nil, err
	}
	fill := strings.NewReplacer("{port}", strconv.Itoa(s.port), "{port2}", strconv.Itoa(s.bus), "{data}", s.dataDir())
	argv := []string{s.binary}
	for _, arg := range append(s.cfg.Command[1:len(s.cfg.Command):len(s.cfg.Command)], s.cfg.Args...) {
		argv = append(argv, fill.Replace(arg))
	}
	return argv, nil
}

func readyAny(ctx context.Context, s *Server, _ *process) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if s.cfg.Ready != nil {
		return s.cfg.Ready(ctx, s.Addr())
	}
	_, err := s.ask(ctx, false, "", 0)
	return err
}

// program returns the path of the program that the configuration starts.
func (c *Config) program() (string, error) {
	if c.Kind != KindCommand {
		return find(c.Kind)
	}
	if len(c.Command) == 0 || c.Command[0] == "" {
		return "", fmt.Errorf("a server of kind %q needs Config.Command", c.Kind)
	}
	path, err := exec.LookPath(c.Command[0])
	if err != nil {
		return "", &MissingError{Program: c.Command[0]}
	}
	return path, nil
}
