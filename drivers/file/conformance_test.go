package file

import (
	"testing"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
)

func TestConformance(t *testing.T) {
	for name, prefix := range map[string]string{"plain": "", "prefix": "app:"} {
		if testing.Short() && prefix == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			redlocktest.Run(t, redlocktest.Harness{
				Open: func() (driver.Backend, error) {
					return New(&Options{Folder: folder, Prefix: prefix})
				},
				Prefix: prefix,
			})
		})
	}
}
