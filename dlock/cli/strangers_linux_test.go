package cli

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// This file checks that text of other programs, such as the keys of other clients and the errors
// of servers, runs no command and disturbs no terminal.

// asDlockInPath makes the program a command named dlock for shells.
func (w *world) asDlockInPath() {
	w.t.Helper()
	if err := os.Symlink(w.exe, w.path("dlock")); err != nil {
		w.t.Fatal(err)
	}
	w.env = append(w.env, "PATH="+w.dir+":"+os.Getenv("PATH"))
}

// Completion offers commands and flags, and no key, in which another client may have put a command.
func TestTheKeyOfAnotherClientRunsNothingInTheShell(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	w := newWorld(t)
	w.hold("file://"+w.dir+"/locks", "nightly$(touch${IFS}pwned)")
	w.asDlockInPath()
	s := newScreen(w, bash, "--norc", "--noprofile", "-i")
	s.line("source <(dlock completion bash); echo com''pletes")
	s.expect("completes")
	s.press("dlock status nightly\t\t\t\x15echo se''en\n") // clears the line
	s.expect("seen")
	for begin, whole := range map[string]string{"doc": "doctor", "status --js": "status --json", "run k -- ./dlo": "run k -- ./dlock"} {
		s.press("dlock " + begin + "\t\x01echo \n") // shows the line
		s.expect("dlock " + whole)
	}
	if w.exists("pwned") {
		t.Error("the completion has run a command in another client's key")
	}
}

const evil = "\x1b[2J\x1b]0;title\a\u009b31m\u202e"

func TestTextOfServersDoesNotDisturbTheTerminal(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // it was only listened to
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close() //nolint:errcheck // the client has ended
				for in := bufio.NewScanner(c); in.Scan(); {
					if strings.HasPrefix(in.Text(), "*") {
						fmt.Fprintf(c, "-ERR %s\r\n", evil)
					}
				}
			}()
		}
	}()
	redis := server.Redis(t)
	w := newWorld(t)
	w.do(redis, "SET", "redlock1:meta", "3 of the "+evil)
	w.do(redis, "SET", "k"+evil, "owner"+evil)
	folder := "file://" + w.dir + "/" + strings.ReplaceAll("a"+evil, "%", "%25")
	w.hold("file://"+w.dir+"/locks", "k"+evil)
	for _, url := range []string{"redis://" + listener.Addr().String(), redis.URL() + "?restart_guard=10s", redis.URL(), "file://" + w.dir + "/locks", folder} {
		for _, args := range [][]string{
			{"run", "--verbose", "--wait", "0", "k" + evil, "--", "true"}, {"status"}, {"status", "--json"}, {"status", "k" + evil}, {"status", "--json", "k" + evil},
			{"unlock", "k" + evil, "--token", "5"}, {"doctor"}, {"doctor", "--json"}, {"bootstrap"}, {"bootstrap", "--dry-run"}, {"walk" + evil},
			{"run", "--wait", "0", "k" + evil, "--", "no" + evil},
		} {
			run := inside
			if url == folder {
				run = outside // it gets the lock
			}
			_, stdout, stderr := run(t, nil, append([]string{args[0], "--url", url}, args[1:]...)...)
			if found := disturbing(stdout + stderr); found != "" {
				t.Errorf("dlock %q on %s writes %s", args, url, found)
			}
		}
	}
}

// The commands that dlock doctor prints run what they say, whatever the names in them.
func TestTheCommandsOfDoctorQuoteNames(t *testing.T) {
	t.Parallel()
	const user = "u$(touch${IFS}pwned)"
	s := server.Redis(t, server.WithUser(user+" on nopass ~app:* resetchannels &app:* +@all -zpopmin"))
	w := on(t, s.URLFor(user, "any")+"?prefix=$(touch%20pwned)'")
	if err := os.WriteFile(w.path("redis-cli"), []byte("#!/bin/sh\nprintf '<%s>' \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	found, err := examine(t, w.url)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Command == "" || !strings.Contains(f.Command, "ACL") {
			continue
		}
		out, err := exec.Command("sh", "-c", "cd '"+w.dir+"'; PATH=.:$PATH; "+f.Command).CombinedOutput()
		if err != nil || w.exists("pwned") || !strings.Contains(string(out), "<ACL><SETUSER><"+user+">") {
			t.Errorf("%s runs redis-cli with %s, %v", f.Command, out, err)
		}
	}
}
