//go:build !unix

package server

import "time"

// This package cannot control processes without POSIX signals.
type process struct {
	pid  int
	done chan struct{}
	err  error
}

func startProcess(*guardian, Kind, []string, string, string) (*process, error) {
	return nil, ErrUnsupported
}

func (p *process) pause() error             { return ErrUnsupported }
func (p *process) resume() error            { return ErrUnsupported }
func (p *process) kill() error              { return ErrUnsupported }
func (p *process) end(bool) error           { return ErrUnsupported }
func (p *process) wait(time.Duration) error { return ErrUnsupported }
func (p *process) stopSignal(Kind) error    { return ErrUnsupported }

type guardian struct{}

func newGuardian(string, bool) (*guardian, error) { return nil, ErrUnsupported }

func (g *guardian) close() error { return nil }

func giveAway(string, Kind) error { return ErrUnsupported }

func runner(Kind) (string, error) { return "", ErrUnsupported }

func ownedBy(string, string) bool { return false }

func runAs(Kind, string, ...string) error { return ErrUnsupported }
