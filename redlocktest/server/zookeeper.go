package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// zkScript is the script that starts a ZooKeeper. It is only used to find the programs, and
// never runs.
const zkScript = "zkServer.sh"

// StartZooKeeper starts a ZooKeeper ensemble of this many members, and returns when all of them
// serve. A tick is 250 ms, and a session may last for two days. A member that was killed starts
// again with its stored data. To remove all data, kill all members and call Group.RestartEmpty.
func StartZooKeeper(ctx context.Context, members int, cfg Config) (*Group, error) {
	cfg.Kind = KindZooKeeper
	return startEnsemble(ctx, members, cfg, func(all []*Server) error {
		for i, s := range all {
			s.cfg.member = i
			if len(all) == 1 {
				break // it must not have a server line, or ZooKeeper warns about its ensemble
			}
			var err error
			if s.cfg.ensemble, err = cfg.zookeeperLines(i, all); err != nil {
				return err
			}
		}
		return nil
	})
}

// zookeeperLines name all members, by the addresses by which one of them reaches the others.
func (c *Config) zookeeperLines(from int, all []*Server) (string, error) {
	var lines strings.Builder
	for to, s := range all {
		quorum, err := c.peerAddr(from, to, s.bus)
		if err != nil {
			return "", err
		}
		election, err := c.peerAddr(from, to, s.election)
		if err != nil {
			return "", err
		}
		host, port, ok := strings.Cut(election, ":")
		if !ok || !strings.HasPrefix(quorum, host+":") {
			return "", fmt.Errorf("a member has one host for both ports, and not %q and %q", quorum, election)
		}
		fmt.Fprintf(&lines, "server.%d=%s:%s;127.0.0.1:%d\n", to+1, quorum, port, s.port)
	}
	return lines.String(), nil
}

// findJava returns the Java program and the class path of ZooKeeper: the jars in the folder of
// its start script, or in Debian's folders.
func findJava() (java, classPath string, err error) {
	missing := &MissingError{Program: zkScript, Package: KindZooKeeper.pkg()}
	javas := places("java")
	if home := os.Getenv("JAVA_HOME"); home != "" {
		if path, err := exec.LookPath(filepath.Join(home, "bin", "java")); err == nil {
			javas = append(javas, path)
		}
	}
	if len(javas) == 0 {
		return "", "", missing
	}
	for _, script := range places(zkScript) {
		if real, err := filepath.EvalSymlinks(script); err == nil {
			script = real
		}
		lib := filepath.Join(filepath.Dir(filepath.Dir(script)), "lib")
		if jars, err := filepath.Glob(filepath.Join(lib, "zookeeper-*.jar")); err == nil && len(jars) > 0 {
			return javas[0], filepath.Join(lib, "*"), nil
		}
		const debian = "/usr/share/java/zookeeper.jar" // whose manifest names the others, but these
		if _, err := os.Stat(debian); err == nil {
			return javas[0], debian + ":/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar", nil
		}
	}
	return "", "", missing
}

func commandZooKeeper(s *Server) ([]string, error) {
	_, classPath, err := findJava()
	if err != nil {
		return nil, err
	}
	if err := s.zookeeperConfig(); err != nil {
		return nil, err
	}
	argv := []string{
		s.binary, "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classPath,
		"-Dzookeeper.admin.enableServer=false", "-Dzookeeper.jmx.log4j.disable=true",
	}
	if !s.cfg.Durable { // written data outlives a kill, but not a crash of the machine
		argv = append(argv, "-Dzookeeper.forceSync=no")
	}
	argv = append(argv, s.cfg.Args...)
	return append(argv, "org.apache.zookeeper.server.quorum.QuorumPeerMain", s.configFile()), nil
}

func (s *Server) zookeeperConfig() error {
	if err := os.MkdirAll(s.dataDir(), 0o700); err != nil {
		return err
	}
	id := filepath.Join(s.dataDir(), "myid")
	if err := os.WriteFile(id, []byte(strconv.Itoa(s.cfg.member+1)+"\n"), 0o600); err != nil {
		return err
	}
	var b strings.Builder
	line := func(name string, value any) { fmt.Fprintf(&b, "%s=%v\n", name, value) }
	line("tickTime", 250)
	line("initLimit", 40)
	line("syncLimit", 12)
	line("maxSessionTimeout", (48 * time.Hour).Milliseconds())
	line("maxClientCnxns", 0)
	line("dataDir", s.dataDir())
	switch {
	case s.certs != nil:
		line("serverCnxnFactory", "org.apache.zookeeper.server.NettyServerCnxnFactory")
		line("secureClientPort", s.port)
		line("secureClientPortAddress", "127.0.0.1")
		for name, files := range map[string][]string{"keyStore": {s.certs.keyFile, s.certs.certFile}, "trustStore": {s.certs.caFile}} {
			store := filepath.Join(s.dir, name+".pem")
			if err := concat(store, files...); err != nil {
				return err
			}
			line("ssl."+name+".location", store)
			line("ssl."+name+".type", "PEM")
		}
		if !s.cfg.ClientCerts {
			line("ssl.clientAuth", "none")
		}
	case s.cfg.ensemble == "":
		line("clientPort", s.port)
		line("clientPortAddress", "127.0.0.1")
	}
	b.WriteString(s.cfg.ensemble)
	return s.config(&b, "%s=%s\n")
}

// concat makes one file of several.
func concat(name string, files ...string) error {
	var all []byte
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		all = append(all, text...)
	}
	return os.WriteFile(name, all, 0o600)
}

// readyZooKeeper asks the member whether it serves, which it does when there is a leader. Its
// four-letter commands need a connection without TLS; with TLS it is ready when it listens.
func readyZooKeeper(ctx context.Context, s *Server, _ *process) error {
	if s.certs != nil {
		_, err := s.ask(ctx, false, "", 0)
		return err
	}
	answer, err := s.ask(ctx, false, "srvr", 1<<16)
	if err == nil && !strings.Contains(answer, "Mode: ") {
		err = errors.New("it has no leader")
	}
	return err
}
