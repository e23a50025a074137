package server

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

//go:embed clock/clock.c
var clockSource []byte

// clockLibrary is the compiled clock/clock.c. It is compiled once, and kept in memory. Every
// server gets a copy in its folder, which is removed with the server.
var clockLibrary = sync.OnceValues(func() (_ []byte, err error) {
	cc, err := compiler()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "redlock-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	argv := append(cc, "-std=gnu11", "-O2", "-shared", "-fPIC", "-o", library, source)
	if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile a server's clock: %w\n%s", err, out)
	}
	return os.ReadFile(library)
})

// compiler returns the command of the C compiler: $CC, or the first one that is installed.
func compiler() ([]string, error) {
	if cc := strings.Fields(os.Getenv("CC")); len(cc) > 0 {
		return cc, nil
	}
	for _, program := range []string{"cc", "gcc", "clang"} {
		if path, err := exec.LookPath(program); err == nil {
			return []string{path}, nil
		}
	}
	return nil, &MissingError{Program: "a C compiler", Package: "gcc libc6-dev"}
}

// The files in a server's folder: the library, and the file that the process maps.
const (
	clockLibraryName = "clock.so"
	clockName        = "clock"
	clockVariable    = "REDLOCKTEST_CLOCK"
)

// clockFile is the file that clock/clock.c maps.
type clockFile struct{ offset, loaded int64 }

// makeClock writes those files; an existing clock keeps its setting.
func (s *Server) makeClock() error {
	library, err := clockLibrary()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.dir, clockLibraryName), library, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(s.dir, clockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(int64(unsafe.Sizeof(clockFile{}))), f.Close())
}

// withClock puts the program that loads the clock before a command.
func (s *Server) withClock(argv []string) ([]string, error) {
	// After this reset the clock shows whether the new process has loaded it.
	if err := s.mapClock(func(c *clockFile) { atomic.StoreInt64(&c.loaded, 0) }); err != nil {
		return nil, err
	}
	return append([]string{
		"env", "LD_PRELOAD=" + filepath.Join(s.dir, clockLibraryName), clockVariable + "=" + filepath.Join(s.dir, clockName),
	}, argv...), nil
}

// clockLoaded returns nil if this process has the clock.
func (s *Server) clockLoaded(p *process) error {
	var pid int64
	if err := s.mapClock(func(c *clockFile) { pid = atomic.LoadInt64(&c.loaded) }); err != nil {
		return err
	}
	if pid != int64(p.pid) {
		return fmt.Errorf("it has not loaded %s (a folder's name with a space or a colon in it?)", filepath.Join(s.dir, clockLibraryName))
	}
	return nil
}

// SetClock sets how far the server's wall clock is ahead of the machine's; negative: behind. It
// takes effect at once, even on a paused server, and stays over restarts; on a stopped server
// it is the clock of the next start. The server's monotonic clock does not change. The server
// must have Config.Clock.
func (s *Server) SetClock(ahead time.Duration) error {
	if !s.cfg.Clock {
		return errors.New("the server has no clock of its own")
	}
	return s.mapClock(func(c *clockFile) { atomic.StoreInt64(&c.offset, int64(ahead)) })
}

// mapClock calls f with the clock's memory. (A reader could see a write to the file half done.)
func (s *Server) mapClock(f func(*clockFile)) (err error) {
	file, err := os.OpenFile(filepath.Join(s.dir, clockName), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // the mapping stays
	memory, err := syscall.Mmap(int(file.Fd()), 0, int(unsafe.Sizeof(clockFile{})), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map a server's clock: %w", err)
	}
	f((*clockFile)(unsafe.Pointer(&memory[0])))
	runtime.KeepAlive(memory)
	return syscall.Munmap(memory)
}
