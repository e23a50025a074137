package machine

import (
	"os/exec"
	"runtime"
	"testing"
	"time"
)

// PostgreSQL's backends come and go while the postmaster lives: their time is not foreign.
func TestTheTimeOfDescendantsThatEndedIsOurOwn(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells")
	}
	before := own()
	c := exec.Command("sh", "-c", "(i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done); read line")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	const least = 0.05 // the subshell ends, and its parent waits for a line
	for own()-before < least {
		time.Sleep(20 * time.Millisecond)
	}
	_ = in.Close()
	_ = c.Wait() // read fails at the end of its input
	if after := own(); after-before < least {
		t.Errorf("%.2f s are our own after the shell's end", after-before)
	}
	if m := Now(); !m.ok || m.Busy(Moment{at: m.at.Add(-time.Second), idle: m.idle}) < 0.99 {
		t.Errorf("no moment, or a second without idle time is not busy: %+v", m)
	}
}
