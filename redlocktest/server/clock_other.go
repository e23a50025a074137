//go:build !linux

package server

import "time"

func (s *Server) makeClock() error                     { return ErrUnsupported }
func (s *Server) withClock([]string) ([]string, error) { return nil, ErrUnsupported }
func (s *Server) clockLoaded(*process) error           { return ErrUnsupported }

// SetClock sets how far the server's wall clock is ahead of the machine's. It works on Linux
// only, and returns ErrUnsupported here.
func (s *Server) SetClock(time.Duration) error { return ErrUnsupported }
