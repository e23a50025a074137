//go:build unix

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// anybodys starts a redis-server as an arbitrary program, which this package does not know.
func anybodys(t *testing.T) *Server {
	t.Helper()
	if _, err := find(KindRedis); err != nil {
		require(t, err)
	}
	return Command(t, []string{"redis-server", "--port", "{port}", "--bind", "127.0.0.1", "--dir", "{data}", "--appendonly", "yes", "--appendfsync", "always"},
		func(_ context.Context, addr string) error {
			pong, err := ask(addr, "PING")
			if err == nil && pong != "PONG" {
				err = fmt.Errorf("PING: %v", pong)
			}
			return err
		})
}

// ask sends one command on a new connection.
func ask(addr string, args ...string) (any, error) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	defer nc.Close() //nolint:errcheck // this connection is only a probe
	if err := nc.SetDeadline(time.Now().Add(doTimeout)); err != nil {
		return nil, err
	}
	return newRespConn(nc).do(args...)
}

func TestAnybodysServerIsKilledPausedAndRestarted(t *testing.T) {
	s := anybodys(t)
	tell := func(want any, args ...string) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); ; {
			got, err := ask(s.Addr(), args...)
			if err == nil && got == want {
				return
			}
			if err == nil || time.Now().After(end) {
				t.Fatalf("%v: %v, %v; want %v", args, got, err, want)
			}
		}
	}
	tell("OK", "SET", "k", "v")
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(s.Addr(), "PING"); err == nil {
		t.Fatalf("a server that was killed answers %v", got)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	tell("v", "GET", "k")

	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := ask(s.Addr(), "GET", "k")
		answered <- err
	}()
	if stopped, err := isStopped(s.Pid()); err != nil || !stopped {
		t.Errorf("a paused server is stopped: %v, %v", stopped, err)
	}
	select {
	case err := <-answered:
		if err == nil {
			t.Error("a paused server answers")
		}
	default:
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	<-answered
	tell("v", "GET", "k")

	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	tell("v", "GET", "k")
	if err := s.RestartEmpty(); err != nil {
		t.Fatal(err)
	}
	tell(nil, "GET", "k")
}

func TestACommandThatCannotStartSaysWhy(t *testing.T) {
	_, err := Start(context.Background(), Config{Kind: KindCommand})
	if err == nil || !strings.Contains(err.Error(), "Config.Command") {
		t.Errorf("without a command: %v", err)
	}
	_, err = Start(context.Background(), Config{Kind: KindCommand, Command: []string{"no-such-server-anywhere"}})
	var missing *MissingError
	if !errors.As(err, &missing) || !strings.Contains(err.Error(), "no-such-server-anywhere") {
		t.Errorf("a program that is not there: %v", err)
	}
	_, err = Start(context.Background(), Config{Kind: KindCommand, Command: []string{"sh", "-c", "echo the-reason >&2; exit 3"}})
	if err == nil || !strings.Contains(err.Error(), "the-reason") {
		t.Errorf("a program that ends: %v", err)
	}
}

// TestStartAgainNeedsAServerThatKeepsItsData: a test that relies on it must not blame the client.
func TestStartAgainNeedsAServerThatKeepsItsData(t *testing.T) {
	forgetful := Command(t, []string{"redis-server", "--port", "{port}", "--bind", "127.0.0.1", "--dir", "{data}", "--save", ""}, nil)
	for _, s := range []*Server{forgetful, Redis(t)} {
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := s.StartAgain(true); err == nil || !strings.Contains(err.Error(), "ppend") {
			t.Errorf("%s keeps nothing, and StartAgain(true) gives %v", s.Kind(), err)
		}
		if err := s.StartAgain(false); err != nil {
			t.Error(err)
		}
	}
}
