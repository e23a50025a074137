package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// adminUser is the user of Do if users are configured.
const adminUser = "redlocktest"

// Socket returns the path of the unix socket on which Redis, Valkey, postgres and mariadbd
// listen too.
func (s *Server) Socket() string {
	if s.cfg.Kind == KindPostgres {
		return filepath.Join(s.dir, fmt.Sprintf(".s.PGSQL.%d", s.port))
	}
	return filepath.Join(s.dir, "sock")
}

func prepareRESP(s *Server) error {
	if len(s.cfg.Users) > 0 {
		s.admin = randomText()
	}
	if s.cfg.Clock {
		if err := s.makeClock(); err != nil {
			return err
		}
	}
	if s.cfg.ReplicaOf != nil {
		s.cfg.authority = s.cfg.ReplicaOf.certs
	}
	return s.prepareTLS()
}

func commandRESP(s *Server) ([]string, error) {
	argv := []string{s.binary, s.configFile()}
	// A sentinel keeps its state in its configuration file.
	if s.cfg.sentinel == "" || !s.started {
		// Passwords are in the file, not in the arguments, which lists of processes show.
		if err := s.config(s.respConfig(), "%s %s\n"); err != nil {
			return nil, err
		}
	}
	if s.cfg.sentinel != "" {
		argv = append(argv, "--sentinel")
	}
	argv = append(argv, s.cfg.Args...)
	if s.cfg.Clock {
		return s.withClock(argv)
	}
	return argv, nil
}

// respConfig returns the configuration file, without the caller's settings.
func (s *Server) respConfig() *strings.Builder {
	var b strings.Builder
	line := func(name string, value any) { fmt.Fprintf(&b, "%s %v\n", name, value) }
	port, tlsPort := s.port, 0
	if s.certs != nil {
		port, tlsPort = 0, s.port
	}
	if s.cfg.UnixOnly {
		port, tlsPort = 0, 0
	}
	line("daemonize", "no")
	line("bind", "127.0.0.1")
	line("port", port)
	line("unixsocket", quote(s.Socket()))
	line("dir", quote(s.dir))
	if s.certs != nil {
		line("tls-port", tlsPort)
		line("tls-cert-file", quote(s.certs.certFile))
		line("tls-key-file", quote(s.certs.keyFile))
		line("tls-ca-cert-file", quote(s.certs.caFile))
		line("tls-auth-clients", yesNo(s.cfg.ClientCerts))
		line("tls-replication", "yes") // a sentinel's connections too
	}
	if s.cfg.sentinel != "" {
		b.WriteString(s.cfg.sentinel)
		return &b
	}
	if s.cfg.Password != "" {
		line("requirepass", quote(s.cfg.Password))
		line("masterauth", quote(s.cfg.Password)) // a primary may become a replica
	}
	line("save", `""`)
	line("appendonly", "no")
	line("repl-diskless-sync-delay", 0)
	if majorVersion(s.binary) >= 7 {
		line("enable-debug-command", "local")
	}
	if s.cfg.Cluster {
		line("cluster-enabled", "yes")
		line("cluster-config-file", "nodes.conf")
		line("cluster-port", s.bus)
		line("cluster-node-timeout", 5000) // a busy machine is no failure
		line("tls-cluster", yesNo(s.certs != nil))
	}
	if p := s.cfg.ReplicaOf; p != nil {
		line("replicaof", fmt.Sprintf("127.0.0.1 %d", p.port))
		if p.cfg.Password != "" {
			line("masterauth", quote(p.cfg.Password))
		}
		if p.admin != "" {
			line("masteruser", adminUser)
			line("masterauth", p.admin)
		}
	}
	for _, u := range s.cfg.Users {
		line("user", u)
	}
	if s.admin != "" {
		line("user", adminUser+" on >"+s.admin+" ~* &* +@all")
	}
	return &b
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// quote writes a string as Redis's configuration files do.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// readyRESP asks for the server's process: another server may have got the port.
func readyRESP(ctx context.Context, s *Server, p *process) error {
	info, err := s.info(ctx)
	switch {
	case err != nil:
		return err
	case info["process_id"] != strconv.Itoa(p.pid):
		return errors.New("another server answers at its address")
	case s.cfg.Clock && s.clockLoaded(p) != nil:
		return s.clockLoaded(p)
	case info["loading"] == "1":
		return errors.New("it is loading its data")
	case !s.started && s.cfg.ReplicaOf != nil && info["role"] == "slave" && info["master_link_status"] != "up":
		return errors.New("it has not reached its primary")
	}
	return nil
}

// info returns the fields of INFO.
func (s *Server) info(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	reply, err := s.do(ctx, "INFO")
	if err != nil {
		return nil, err
	}
	text, ok := reply.(string)
	if !ok {
		return nil, errors.New("INFO's reply is odd")
	}
	fields := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields, nil
}

// saveRESP writes a dump. It waits while another dump is being written, for a rule or a new replica.
func saveRESP(s *Server) error {
	for end := time.Now().Add(stopTimeout); s.cfg.sentinel == ""; time.Sleep(10 * time.Millisecond) {
		_, err := s.Do("SAVE")
		if err == nil || !strings.Contains(err.Error(), "in progress") || time.Now().After(end) {
			return err
		}
	}
	return nil
}

// wipeRESP removes the server's data, except its log, its membership in a cluster and its clock.
func wipeRESP(s *Server) error {
	keep := map[string]bool{"log": true, "nodes.conf": true, "ca.pem": true, "cert.pem": true, "key.pem": true,
		"clock": true, "clock.so": true}
	files, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if keep[f.Name()] {
			continue
		}
		err = errors.Join(err, os.RemoveAll(filepath.Join(s.dir, f.Name())))
	}
	return err
}
