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
// A gate is made with both records, so that a file that lost its records is noticed. One process at a
// time makes a gate: it has the lock of makerName.

const (
	gatePrefix = ".gate-"
	makerName  = ".gates"
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
		return nil, refused(err, path)
	}
	return p.openLock(path, os.O_RDWR)
}

// await locks a gate, or makerName. It fails if that is not free in time, for example because a
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

// makeGate makes a gate. Its tokens begin at the clock.
func (b *Backend) makeGate(ctx context.Context, p *place, path string) error {
	makerPath := filepath.Join(p.path, makerName)
	maker, err := p.openLock(makerPath, os.O_RDWR)
	if err != nil {
		return err
	}
	defer maker.free()
	if err := b.await(ctx, maker, makerPath); err != nil {
		return err
	}
	if _, err := os.Lstat(path); err == nil {
		return nil // another process has made it
	}
	fresh := path + "." + strconv.Itoa(os.Getpid()) // complete before it has its name
	made, err := p.openLock(fresh, os.O_RDWR)
	if err != nil {
		return err
	}
	err = beginAt(made.text(), 0)
	made.close()
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err == nil {
		err = syncFolder(p.path)
	}
	if err != nil {
		_ = os.Remove(fresh) // the error above tells more
		return refused(err, path)
	}
	return nil
}
