package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Every attempt, look, removal and Break of a key takes the key's gate first, one of the 16 gate
// files of the folder. So with the gate, a lock that cannot be taken is held, and nobody replaces
// a lock file. A gate file also is the counter of the tokens of its keys.
//
// A gate is made with both records, so that a file that lost its records is noticed. The tokens of
// a new gate begin above the folder's mark, headName, which says the layout too.
//
// # Beside the layout dlock1
//
// In that layout each key had a file of its own for its counter, and one mark for the counters that
// were removed. Its locks are on the same files, so both layouts exclude each other. The first gate
// gives the mark the new layout, after which the former release refuses new keys; a key that it has
// used has its former counter taken over, after which the former release refuses this key.

const (
	gatePrefix = ".gate-"
	headName   = ".high-water"
)

// gatePatience is how long to wait for a gate before giving up. On a busy machine the process that
// has the gate may not run for a while.
const gatePatience = 5 * time.Second

// enter locks the gate of a key.
func (b *Backend) enter(ctx context.Context, p *place, n paths) (*lock, error) {
	for range attempts {
		gate, err := p.openGate(n.gate)
		if errors.Is(err, fs.ErrNotExist) {
			if err = b.makeGate(ctx, p, n.gate); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		if err := b.await(ctx, gate, n.gate); err != nil {
			gate.close()
			return nil, err
		}
		if gate.current(n.gate) {
			return gate, nil
		}
		gate.free()
	}
	return nil, fmt.Errorf("file: %s: keeps being replaced", n.gate)
}

// openGate opens a gate, and does not make it.
func (p *place) openGate(path string) (*lock, error) {
	if _, err := os.Lstat(path); err != nil {
		return nil, err
	}
	return p.openLock(path, os.O_RDWR)
}

// await locks a gate, or the head. It fails if that is not free in time, for example because a
// process that has it was stopped.
func (b *Backend) await(ctx context.Context, l *lock, path string) error {
	end := time.Now().Add(b.patience)
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		ok, err := l.try(driver.Exclusive)
		switch {
		case err != nil:
			return refused(err, path)
		case ok:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("file: %s: another process has locked it, and does not go on", path)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// makeGate makes a gate whose tokens are above the folder's mark.
func (b *Backend) makeGate(ctx context.Context, p *place, path string) error {
	headPath := filepath.Join(p.path, headName)
	head, err := p.openLock(headPath, os.O_RDWR)
	if err != nil {
		return err
	}
	defer head.free()
	if err := b.await(ctx, head, headPath); err != nil {
		return err
	}
	if _, err := os.Lstat(path); err == nil {
		return nil // another process has made it
	}
	mark, err := formerCounter(head.text())
	switch {
	case errors.Is(err, errLayout): // the present one, most often
		if mark, err = read(head.text(), layout).counter(""); err != nil {
			return refused(err, headPath)
		}
	case err != nil:
		return refused(err, headPath)
	default:
		if err := beginAt(head.text(), mark); err != nil {
			return refused(err, headPath)
		}
	}
	if mark >= driver.MaxFence {
		return refused(errEnd, headPath)
	}
	fresh := path + "." + strconv.Itoa(os.Getpid()) // complete before it has its name
	gate, err := p.openLock(fresh, os.O_RDWR)
	if err != nil {
		return err
	}
	err = beginAt(gate.text(), mark)
	gate.close()
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err == nil {
		err = syncFolder(p.path)
	}
	if err != nil {
		return refused(err, path)
	}
	return nil
}

// formerCounter returns the counter of a file in the layout dlock1; zero if the file is empty.
func formerCounter(f storage) (uint64, error) {
	p := read(f, former)
	if p.latest() == nil && errors.Is(errors.Join(p.err[:]...), errBlank) {
		for _, err := range p.err {
			if errors.Is(err, errLayout) {
				return 0, err
			}
		}
		return 0, nil // no token was given; one damaged record is a first write that was cut off
	}
	return p.counter("")
}

// takeOver returns the counter of the key in the layout dlock1, if it has one. Then call retire, with
// the error of writing a token above it. If there is none, the former release refuses the key from
// then on.
func (b *Backend) takeOver(ctx context.Context, p *place, n paths) (counter uint64, retire func(error) error, err error) {
	if _, err := os.Lstat(n.state); errors.Is(err, fs.ErrNotExist) {
		return 0, func(err error) error { return err }, nil
	}
	state, err := p.open(n.state, os.O_RDWR)
	if err != nil {
		return 0, nil, err
	}
	gate, err := p.formerGate(n, state) // shared holders take their tokens with it
	if err == nil {
		err = b.await(ctx, gate, n.state)
	}
	if err == nil {
		counter, err = formerCounter(state)
	}
	if errors.Is(err, errLayout) { // it was taken over, and the process died before it was removed
		counter, err = 0, nil
	}
	if err == nil && counter >= driver.MaxFence {
		err = errEnd
	}
	free := func() {
		if gate != nil {
			gate.free()
		}
		_ = state.Close() // it was synced, or only read
	}
	if err != nil {
		free()
		return 0, nil, refused(err, n.state)
	}
	return counter, func(err error) error {
		defer free()
		if err != nil {
			return err
		}
		err = beginAt(state, counter)
		_ = os.Remove(n.state) // another user's may have to stay
		return err
	}, nil
}
