package server

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Superuser is postgres' superuser. It needs no password.
const Superuser = "postgres"

// postgresURL is the URL of a postgres, or of its pooler, without the host.
var postgresURL = url.URL{Scheme: "postgres", User: url.User(Superuser), Path: "/postgres", RawQuery: "sslmode=disable"}

// preparePostgres copies a fresh cluster from the template.
func preparePostgres(s *Server) error {
	if _, err := os.Stat(filepath.Join(s.dataDir(), "PG_VERSION")); err == nil {
		return nil // the caller's folder, which was used before
	}
	return s.freshCluster()
}

func (s *Server) freshCluster() error {
	if s.cfg.ReplicaOf != nil {
		return s.baseBackup()
	}
	from, err := s.template()
	if err != nil {
		return err
	}
	if err := errors.Join(os.CopyFS(s.dataDir(), os.DirFS(from)), os.Chmod(s.dataDir(), 0o700)); err != nil {
		return err
	}
	if s.cfg.Standby {
		if err := os.WriteFile(filepath.Join(s.dataDir(), "standby.signal"), nil, 0o600); err != nil {
			return err
		}
	}
	return giveAway(s.dataDir(), s.cfg.Kind)
}

// baseBackup copies the primary's cluster, for a standby that follows it by streaming.
func (s *Server) baseBackup() error {
	if err := os.MkdirAll(s.dataDir(), 0o700); err != nil {
		return err
	}
	if err := giveAway(s.dataDir(), s.cfg.Kind); err != nil {
		return err
	}
	err := runAs(s.cfg.Kind, s.dir, s.program("pg_basebackup"), "-D", s.dataDir(), "-h", "127.0.0.1",
		"-p", strconv.Itoa(s.cfg.ReplicaOf.port), "-U", Superuser, "-c", "fast", "-X", "stream", "--no-sync")
	if err != nil {
		return err
	}
	signal := filepath.Join(s.dataDir(), "standby.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		return err
	}
	return giveAway(signal, s.cfg.Kind)
}

// program returns the path of another program of the same installation: in the folder of the
// server's program, or of the file that this links to.
func (s *Server) program(name string) string {
	path := filepath.Join(filepath.Dir(s.binary), name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if real, err := filepath.EvalSymlinks(s.binary); err == nil {
		return filepath.Join(filepath.Dir(real), name)
	}
	return path
}

// Promote makes a standby a primary, and returns when it accepts writes.
func (s *Server) Promote() error {
	return s.signal(func(*process) error {
		return runAs(s.cfg.Kind, s.dir, s.program("pg_ctl"), "promote", "-D", s.dataDir(), "-w", "-t", "30")
	})
}

// templates is held while a template is made, because tests that begin together need the same one.
var templates sync.Mutex

// template returns the folder of a new database cluster made by initdb. initdb is slow, so it
// runs once for each version and user; the result stays in the system's temporary folder.
func (s *Server) template() (string, error) {
	templates.Lock()
	defer templates.Unlock()
	initdb := s.program("initdb")
	who, err := runner(s.cfg.Kind)
	if err != nil {
		return "", err
	}
	ready := filepath.Join(os.TempDir(), fmt.Sprintf("redlock-postgres-%s-%s", postgresRelease(s.binary), who))
	if ownedBy(ready, who) {
		return ready, nil
	}
	// It is made in a folder of its own and then renamed, because other processes may make it too.
	making, err := os.MkdirTemp("", "redlock-initdb-")
	if err != nil {
		return "", err
	}
	if err := initialize(making, s.cfg.Kind, initdb); err != nil {
		return "", errors.Join(err, os.RemoveAll(making))
	}
	if err = os.Rename(making, ready); err != nil && ownedBy(ready, who) {
		err = nil // another process was faster
	}
	return ready, errors.Join(err, os.RemoveAll(making))
}

// initialize runs initdb on an empty folder.
func initialize(folder string, kind Kind, initdb string) error {
	if err := giveAway(folder, kind); err != nil {
		return err
	}
	// Small segments of the log, because every new server copies them.
	return runAs(kind, folder, initdb, "-D", folder, "-U", Superuser, "-A", "trust",
		"-E", "UTF8", "--no-locale", "--no-sync", "--wal-segsize=1")
}

// postgresRelease returns the release of a postgres program, "15.12".
func postgresRelease(path string) string {
	for _, word := range strings.Fields(version(path)) {
		if word[0] >= '0' && word[0] <= '9' {
			return word
		}
	}
	return "unknown"
}

func commandPostgres(s *Server) ([]string, error) {
	var conf strings.Builder
	line := func(name, value string) {
		fmt.Fprintf(&conf, "%s = '%s'\n", name, strings.ReplaceAll(value, "'", "''"))
	}
	line("listen_addresses", "127.0.0.1")
	line("port", strconv.Itoa(s.port))
	line("unix_socket_directories", s.dir)
	line("shared_buffers", "16MB")
	// In the server's folder, which is removed, not in the system's, where it would stay.
	line("dynamic_shared_memory_type", "mmap")
	line("max_wal_size", "256MB")
	line("hba_file", filepath.Join(s.dir, "hba"))
	if !s.cfg.Durable {
		line("fsync", "off")
		line("full_page_writes", "off")
	}
	if p := s.cfg.ReplicaOf; p != nil {
		line("primary_conninfo", fmt.Sprintf("host=127.0.0.1 port=%d user=%s application_name=standby", p.port, Superuser))
		line("wal_retrieve_retry_interval", "100ms") // or a promotion waits for it
	}
	hba := append(append([]string{}, s.cfg.HBA...),
		"local all all trust", "host all all 127.0.0.1/32 trust",
		"local replication all trust", "host replication all 127.0.0.1/32 trust", "")
	path := filepath.Join(s.dir, "hba")
	if err := os.WriteFile(path, []byte(strings.Join(hba, "\n")), 0o600); err != nil {
		return nil, err
	}
	if err := errors.Join(giveAway(path, s.cfg.Kind), s.config(&conf, "%s = %s\n")); err != nil {
		return nil, err
	}
	argv := []string{s.binary, "-D", s.dataDir(), "-c", "config_file=" + s.configFile()}
	return append(argv, s.cfg.Args...), nil
}

// readyPostgres reads from the server's lock file its process and whether it accepts connections (the
// eighth line).
func readyPostgres(_ context.Context, s *Server, p *process) error {
	text, err := os.ReadFile(filepath.Join(s.dataDir(), "postmaster.pid"))
	if err != nil {
		return err
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 8 || strings.TrimSpace(lines[0]) != strconv.Itoa(p.pid) {
		return errors.New("it is starting")
	}
	if state := strings.TrimSpace(lines[7]); state != "ready" && state != "standby" {
		return fmt.Errorf("it is %s", state)
	}
	return nil
}

func wipePostgres(s *Server) error {
	if err := os.RemoveAll(s.dataDir()); err != nil {
		return err
	}
	return s.freshCluster()
}

func commandPgBouncer(s *Server) ([]string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "[databases]\n* = host=127.0.0.1 port=%d user=%s\n[pgbouncer]\n", s.cfg.PoolOf.port, Superuser)
	fmt.Fprintf(&b, "listen_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\n", s.port)
	// Every client is the superuser: only the loopback interface can connect.
	fmt.Fprintf(&b, "auth_type = any\npool_mode = %s\n", s.cfg.PoolMode)
	fmt.Fprintf(&b, "max_client_conn = 1000\ndefault_pool_size = 100\n")
	return append([]string{s.binary, s.configFile()}, s.cfg.Args...), s.config(&b, "%s = %s\n")
}

// readyPgBouncer waits until the log says that the server is up, because another program might have
// the port, and until the port accepts connections.
func readyPgBouncer(ctx context.Context, s *Server, p *process) error {
	if !strings.Contains(s.LogTail(20), fmt.Sprintf("[%d] LOG process up", p.pid)) {
		return errors.New("it is starting")
	}
	_, err := s.ask(ctx, false, "", 0)
	return err
}
