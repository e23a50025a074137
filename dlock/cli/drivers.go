package cli

import (
	"strings"

	"github.com/redlock-go/redlock/dlock"
)

func newDrivers(c *call) func() error {
	return func() error {
		if err := c.want(0, 0); err != nil {
			return err
		}
		rows := [][]string{{"DRIVER", "FEATURES", "URL", "REMARK"}}
		for _, name := range dlock.Drivers() {
			_, form := lookup("dlock drivers", name)
			form, remark, _ := strings.Cut(form, "  ")
			if form == "" { // a driver of another module
				form = name + "://HOST"
			}
			features := "?"
			if b, err := dlock.OpenBackend(form); err == nil {
				features = b.Info().Features.String()
				_ = b.Close() // it was not used
			}
			rows = append(rows, []string{name, features, form, strings.TrimSpace(remark)})
		}
		writeTable(c.out, "", rows)
		return nil
	}
}
