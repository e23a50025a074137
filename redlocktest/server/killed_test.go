//go:build unix

package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// scene tells the helper process what to do. Without it this is an ordinary test run.
const scene = "REDLOCKTEST_SCENE"

// inScene runs one test of this binary in a new process.
func inScene(t *testing.T, name, test string, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), append([]string{scene + "=" + name}, env...)...)
	return cmd
}

// left lists the processes and folders that a helper process says it started.
type left struct {
	Servers, Guardians []int
	Children           []int // of the servers; some come and go
	Dirs               []string
}

// TestSceneOfServers runs in the helper process. It starts servers, prints them, and waits to
// be killed.
func TestSceneOfServers(t *testing.T) {
	if os.Getenv(scene) != "servers" {
		return
	}
	all := []*Server{Redis(t), Valkey(t), Postgres(t), Redis(t), Postgres(t)}
	var l left
	for _, s := range all {
		l.Servers = append(l.Servers, s.Pid())
		l.Children = append(l.Children, descendants(s.Pid())...)
		l.Guardians = append(l.Guardians, s.guard.cmd.Process.Pid)
		l.Dirs = append(l.Dirs, s.Dir())
	}
	must(t, all[3].Pause())
	must(t, all[4].Pause())
	text, err := json.Marshal(l)
	must(t, err)
	fmt.Printf("\n%s\n", text)
	select {}
}

// servers starts the helper process and returns what it started. The caller kills it.
func servers(t *testing.T) (*exec.Cmd, left) {
	t.Helper()
	for _, kind := range []Kind{KindRedis, KindValkey, KindPostgres} {
		_, err := find(kind)
		require(t, err)
	}
	cmd := inScene(t, "servers", "TestSceneOfServers")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	var l left
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if json.Unmarshal(lines.Bytes(), &l) == nil {
			return cmd, l
		}
	}
	t.Fatal("the helper process ended")
	return nil, l
}

// awaitEnd waits until all these processes are gone.
func awaitEnd(t *testing.T, pids []int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	must(t, poll(ctx, func(context.Context) error {
		if i := slices.IndexFunc(pids, alive); i >= 0 {
			return fmt.Errorf("process %d is there", pids[i])
		}
		return nil
	}))
}

func TestAKilledTestLeavesNoServerAndNoFolder(t *testing.T) {
	t.Parallel()
	cmd, l := servers(t)
	for _, pid := range slices.Concat(l.Servers, l.Guardians) {
		if !alive(pid) {
			t.Errorf("process %d was not there at all", pid)
		}
	}
	must(t, cmd.Process.Kill())
	awaitEnd(t, slices.Concat(l.Servers, l.Children, l.Guardians))
	for _, dir := range l.Dirs {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}

// TestSceneOfAMissingServer runs in the helper process of the test below.
func TestSceneOfAMissingServer(t *testing.T) {
	if os.Getenv(scene) == "missing" {
		require(t, &MissingError{Program: "etcd-server", Package: "etcd"})
	}
}

func TestAMissingServerSkipsAndFailsInCI(t *testing.T) {
	t.Parallel()
	for _, ci := range []string{"", "1"} {
		out, err := inScene(t, "missing", "TestSceneOfAMissingServer", "CI="+ci).CombinedOutput()
		text := string(out)
		if !strings.Contains(text, "needs etcd-server (package etcd): run redlocktest/all.bash --install") {
			t.Errorf("CI=%q: no advice in:\n%s", ci, text)
		}
		if skipped, failed := strings.Contains(text, "--- SKIP"), err != nil; skipped != (ci == "") || failed != (ci != "") {
			t.Errorf("CI=%q: skipped %v, failed %v", ci, skipped, failed)
		}
	}
}
