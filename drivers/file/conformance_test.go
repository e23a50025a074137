package file

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestConformance(t *testing.T) {
	for name, prefix := range map[string]string{"plain": "", "prefix": "app:"} {
		if prefix == "" && !server.IsDeep() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			url := fileURL(t, folder)
			h := redlocktest.Harness{
				Open: func() (driver.Backend, error) {
					return New(&Options{Folder: folder, Prefix: prefix})
				},
				Driver: Driver{}, URL: url,
				LocalClock:   true,
				Timeout:      5 * time.Minute, // for a machine that is very busy
				Prefix:       prefix,
				Short:        prefix == "", // the other run has the repetitions
				FutureLayout: func() (func() error, error) { return nextLayout(folder) },
			}
			if runtime.GOOS != "windows" { // see TestMain
				h.Process = func() (*redlocktest.Client, error) { return redlocktest.StartClient(url + "?prefix=" + prefix) }
			}
			redlocktest.Run(t, h)
		})
	}
}

// fileURL returns the URL of a folder.
func fileURL(t *testing.T, folder string) string {
	b, err := New(&Options{Folder: folder})
	must(t, err)
	defer func() { _ = b.Close() }()
	return b.String()
}

var anyRecord = regexp.MustCompile(layout + ` [^\n]* crc=[0-9a-f]{8}\n`)

// nextLayout gives every record in a folder the layout of a later release.
func nextLayout(folder string) (undo func() error, err error) {
	files, err := filepath.Glob(filepath.Join(folder, gatePrefix+"*"))
	before := map[string][]byte{}
	for _, name := range files {
		data, e := os.ReadFile(name)
		if e != nil || !anyRecord.Match(data) {
			continue
		}
		before[name] = data
		err = errors.Join(err, os.WriteFile(name, anyRecord.ReplaceAllFunc(data, func(r []byte) []byte {
			line := "dlock3" + string(r[len(layout):len(r)-len(" crc=00000000\n")])
			return fmt.Appendf(nil, "%s crc=%08x\n", line, crc32.ChecksumIEEE([]byte(line)))
		}), 0o600))
	}
	if len(before) == 0 {
		err = errors.Join(err, errors.New("no file has a record"))
	}
	return func() (err error) {
		for name, data := range before {
			err = errors.Join(err, os.WriteFile(name, data, 0o600))
		}
		return err
	}, err
}
