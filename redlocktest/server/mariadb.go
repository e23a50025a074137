package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// MariaDBSuperuser is mariadbd's superuser. It needs no password.
const MariaDBSuperuser = "root"

func prepareMariaDB(s *Server) error {
	if err := s.prepareTLS(); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(s.dataDir(), "mysql")); err == nil {
		return nil // the caller's folder, which was used before
	}
	return s.mariadbInstall()
}

// mariadbInstall makes the system tables, as mariadb-install-db does, and the database "test".
// That program is in another package than the server, and needs further programs.
func (s *Server) mariadbInstall() error {
	share, err := s.mariadbShare()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dataDir(), 0o700); err != nil {
		return err
	}
	script := bytes.NewBufferString("CREATE DATABASE mysql;\nUSE mysql;\n")
	for _, names := range [][2]string{
		{"mariadb_system_tables.sql", "mysql_system_tables.sql"},
		{"mariadb_system_tables_data.sql", "mysql_system_tables_data.sql"},
	} {
		text, err := os.ReadFile(filepath.Join(share, names[0]))
		if err != nil {
			text, err = os.ReadFile(filepath.Join(share, names[1])) // before version 11
		}
		if err != nil {
			return err
		}
		script.Write(text)
		script.WriteByte('\n')
	}
	script.WriteString("CREATE DATABASE test;\n")
	if err := s.mariadbConfig(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.binary, "--defaults-file="+s.configFile(), "--bootstrap", "--skip-networking")
	cmd.Dir, cmd.Stdin = s.dir, script
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s --bootstrap: %w\n%s", s.binary, err, out)
	}
	return nil
}

// mariadbShare returns the folder of the scripts that make the system tables.
func (s *Server) mariadbShare() (string, error) {
	binary := s.binary
	if real, err := filepath.EvalSymlinks(binary); err == nil {
		binary = real
	}
	share := filepath.Join(filepath.Dir(filepath.Dir(binary)), "share")
	for _, name := range []string{"mariadb", "mysql", "."} {
		for _, file := range []string{"mariadb_system_tables.sql", "mysql_system_tables.sql"} {
			if _, err := os.Stat(filepath.Join(share, name, file)); err == nil {
				return filepath.Join(share, name), nil
			}
		}
	}
	return "", fmt.Errorf("no scripts for the system tables of %s under %s", s.binary, share)
}

func (s *Server) pidFile() string { return filepath.Join(s.dir, "pid") }

func (s *Server) mariadbConfig() error {
	var b strings.Builder
	line := func(name string, value any) { fmt.Fprintf(&b, "%s = %v\n", name, value) }
	b.WriteString("[mariadbd]\n")
	if os.Geteuid() == 0 {
		line("user", "root") // which it refuses unless it is told
	}
	line("datadir", s.dataDir())
	line("tmpdir", s.dir)
	line("bind-address", "127.0.0.1")
	line("port", s.port)
	line("socket", s.Socket())
	line("pid-file", s.pidFile())
	line("skip-name-resolve", 1)
	line("innodb-log-file-size", "4M")
	line("innodb-buffer-pool-size", "16M")
	line("innodb-use-native-aio", 0)
	if !s.cfg.Durable { // written data outlives a kill, but not a crash of the machine
		line("innodb-flush-log-at-trx-commit", 2)
		line("innodb-doublewrite", 0)
	}
	if s.certs != nil {
		line("ssl-ca", s.certs.caFile)
		line("ssl-cert", s.certs.certFile)
		line("ssl-key", s.certs.keyFile)
		line("require-secure-transport", 1)
	}
	return s.config(&b, "%s = %s\n")
}

func commandMariaDB(s *Server) ([]string, error) {
	if err := os.Remove(s.pidFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	argv := []string{s.binary, "--defaults-file=" + s.configFile()}
	return append(argv, s.cfg.Args...), s.mariadbConfig()
}

// readyMariaDB reads the file that the server writes when it has recovered and listens, and waits
// for its greeting.
func readyMariaDB(ctx context.Context, s *Server, p *process) error {
	text, err := os.ReadFile(s.pidFile())
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(text)) != strconv.Itoa(p.pid) {
		return errors.New("it is starting")
	}
	_, err = s.ask(ctx, false, "", 1)
	return err
}

func wipeMariaDB(s *Server) error {
	if err := os.RemoveAll(s.dataDir()); err != nil {
		return err
	}
	return s.mariadbInstall()
}
