package fault

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A clock sleeps with a precision of some ten microseconds. Go's own timers on Linux make an
// idle process wait in whole milliseconds (the unit of epoll_wait), which is as long as the
// delays here. A timerfd wakes it in time.
type clock struct {
	file *os.File
	stop func() bool
}

// sleepUntil returns at t, or with ctx's error when it ends before. One ctx for all
// calls.
func (c *clock) sleepUntil(ctx context.Context, t time.Time) error {
	if c.file == nil {
		if err := c.open(ctx); err != nil {
			return err
		}
	}
	wait := time.Until(t)
	if wait <= 0 {
		return ctx.Err()
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(wait))}
	raw, err := c.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.TimerfdSettime(int(fd), 0, &spec, nil) }); err != nil || failed != nil {
		return errors.Join(err, failed, ctx.Err())
	}
	var expirations [8]byte
	if _, err := c.file.Read(expirations[:]); err != nil {
		return errors.Join(err, ctx.Err())
	}
	if binary.NativeEndian.Uint64(expirations[:]) == 0 {
		return errors.New("the timer did not expire")
	}
	return ctx.Err()
}

// open makes the descriptor. The end of the context closes it, which wakes the sleeper.
func (c *clock) open(ctx context.Context) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("timerfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "timer")
	c.file = file
	c.stop = context.AfterFunc(ctx, func() { _ = file.Close() })
	return nil
}

// close frees the descriptor.
func (c *clock) close() {
	if c.file == nil {
		return
	}
	if c.stop() {
		_ = c.file.Close()
	}
}
