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
	before, ok := own()
	if !ok {
		t.Fatal("nothing is known of this process")
	}
	c := exec.Command("sh", "-c", "(i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done); read line")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	// The subshell ends, and its parent waits for a line.
	const least = 0.05
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		shell, _ := used(int32(c.Process.Pid)) // with its subshell once that has ended
		all, _ := own()
		if shell >= least && all-before >= shell {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("of the shell's %.2f s %.2f s are our own", shell, all-before)
		}
	}
	_ = in.Close()
	_ = c.Wait() // read fails at the end of its input
	if after, _ := own(); after-before < least {
		t.Errorf("%.2f s are our own after the shell's end", after-before)
	}
}
