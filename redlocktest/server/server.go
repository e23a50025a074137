package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/redlocktest/internal/port"
)

// Goroutine is the function in which the one goroutine of each running server
// waits, for leak detectors.
const Goroutine = "github.com/redlock-go/redlock/redlocktest/server.(*process).run"

// ErrUnsupported is returned on platforms without POSIX signals.
var ErrUnsupported = errors.New("servers can be started on Unix systems only")

// How long a server may take to start or to stop. Generous: with a hundred processes for each
// processor a Java machine needs more than a minute to start.
const (
	startTimeout = 3 * time.Minute
	stopTimeout  = 20 * time.Second
)

// A Server is one server process, or one that was stopped and can be started again
// on the same address. All methods are safe for concurrent use, and none blocks for
// longer than four minutes.
type Server struct {
	cfg    Config
	kind   flavour
	binary string
	dir    string
	port   int
	bus    int // a cluster node's second port
	// election is the third port of a member of a ZooKeeper, and of a Consul: that of its gossip.
	election int
	ports    []*port.Port // reserved until Close, even while it does not run
	certs    *certificates
	admin    string // password of the extra user of Do if users are configured

	mu      sync.Mutex // held during a change of state
	guard   *guardian
	proc    *process
	gone    bool // Close was called
	started bool // it has been ready before
}

// flavour has the parts that differ between kinds of servers.
type flavour struct {
	// prepare fills the folder before the first start; nil: with certificates, if they are asked for.
	prepare func(s *Server) error
	// command returns the program and its arguments, and writes the files that they name.
	command func(s *Server) ([]string, error)
	// ready returns nil as soon as this process serves.
	ready func(ctx context.Context, s *Server, p *process) error
	// save writes all data to disk; nil: they are there.
	save func(s *Server) error
	// wipe removes the server's data; nil: they are all in the folder "data".
	wipe func(s *Server) error
	// url is the address as a DSN, without the host.
	url url.URL
}

// flavourOf returns the flavour of a kind.
func flavourOf(kind Kind) (flavour, error) {
	switch kind {
	case KindRedis:
		return flavour{prepareRESP, commandRESP, readyRESP, saveRESP, wipeRESP, url.URL{Scheme: "redis", Path: "/0"}}, nil
	case KindValkey:
		return flavour{prepareRESP, commandRESP, readyRESP, saveRESP, wipeRESP, url.URL{Scheme: "valkey", Path: "/0"}}, nil
	case KindPostgres:
		return flavour{preparePostgres, commandPostgres, readyPostgres, nil, wipePostgres, postgresURL}, nil
	case KindPgBouncer:
		return flavour{nil, commandPgBouncer, readyPgBouncer, nil, nil, postgresURL}, nil
	case KindEtcd:
		return flavour{nil, commandEtcd, readyEtcd, nil, nil, url.URL{Scheme: "etcd", Path: "/"}}, nil
	case KindMariaDB:
		return flavour{prepareMariaDB, commandMariaDB, readyMariaDB, nil, wipeMariaDB, url.URL{Scheme: "mysql", User: url.User(MariaDBSuperuser), Path: "/test"}}, nil
	case KindZooKeeper:
		return flavour{nil, commandZooKeeper, readyZooKeeper, nil, nil, url.URL{Scheme: "zk"}}, nil
	case KindNATS:
		return flavour{nil, commandNATS, readyNATS, nil, nil, url.URL{Scheme: "nats"}}, nil
	case KindConsul:
		return flavour{nil, commandConsul, readyConsul, nil, nil, url.URL{Scheme: "consul"}}, nil
	case KindCommand:
		return flavour{nil, commandAny, readyAny, nil, nil, url.URL{Scheme: "tcp"}}, nil
	}
	return flavour{}, fmt.Errorf("unknown kind of server %q", kind)
}

// speaksRESP reports whether the server is a Redis or a Valkey.
func (c *Config) speaksRESP() bool { return c.Kind == KindRedis || c.Kind == KindValkey }

// Start starts a server and returns when it serves. The caller closes it. The error
// is a *MissingError if the program is not installed.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	g, err := startEnsemble(ctx, 1, cfg, func([]*Server) error { return nil })
	if err != nil {
		return nil, err
	}
	return g.Nodes[0], nil
}

// makeFolder makes the server's folder, and the guardian that removes it.
func (s *Server) makeFolder() error {
	doomed := ""
	if s.dir = s.cfg.Dir; s.dir == "" {
		parent := ""
		if !s.cfg.Clock { // a folder mounted noexec cannot hold its library
			parent = memoryFolder()
		}
		dir, err := os.MkdirTemp(parent, "redlock-")
		if err != nil {
			return err
		}
		s.dir, doomed = dir, dir
	} else if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	guard, err := newGuardian(doomed, s.cfg.Kind == KindPostgres)
	if err != nil {
		return errors.Join(err, os.RemoveAll(doomed))
	}
	s.guard = guard
	return giveAway(s.dir, s.cfg.Kind)
}

// prepare fills the folder before the first start.
func (s *Server) prepare() error {
	if s.kind.prepare != nil {
		return s.kind.prepare(s)
	}
	return s.prepareTLS()
}

// takePorts reserves new ports in place of the old ones.
func (s *Server) takePorts() error {
	if err := s.releasePorts(); err != nil {
		return err
	}
	for _, number := range []*int{&s.port, &s.bus, &s.election} {
		p, err := port.Reserve()
		if err != nil {
			return err
		}
		*number = p.Number
		if s.cfg.Kind == KindConsul && number == &s.election { // its gossip keeps the port of UDP itself
			if err := p.Close(); err != nil {
				return err
			}
			continue
		}
		s.ports = append(s.ports, p)
	}
	return nil
}

func (s *Server) releasePorts() (err error) {
	for _, p := range s.ports {
		err = errors.Join(err, p.Close())
	}
	s.ports = nil
	return err
}

// addressInUse reports whether the log says that the port, or postgres's shared memory, is in
// use.
func (s *Server) addressInUse() bool {
	tail := s.LogTail(20)
	return strings.Contains(tail, "already in use") || strings.Contains(tail, "still in use")
}

// start starts the process and waits until it serves. The caller holds s.mu.
func (s *Server) start(ctx context.Context) error {
	argv, err := s.kind.command(s)
	if err != nil {
		return err
	}
	p, err := startProcess(s.guard, s.cfg.Kind, argv, s.dir, s.logFile())
	if err != nil {
		return err
	}
	s.proc = p
	if err := s.awaitReady(ctx, p); err != nil {
		return errors.Join(err, s.killLocked())
	}
	s.started = true
	return nil
}

// awaitReady polls until the server serves or its process ends.
func (s *Server) awaitReady(ctx context.Context, p *process) error {
	pause := time.NewTicker(5 * time.Millisecond)
	defer pause.Stop()
	for {
		err := s.kind.ready(ctx, s, p)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("it ended at once: %w", p.err)
		case <-ctx.Done():
			return fmt.Errorf("it does not serve: %w", err)
		case <-pause.C:
		}
	}
}

// Kind returns the server's kind.
func (s *Server) Kind() Kind { return s.cfg.Kind }

// Dir returns the server's folder.
func (s *Server) Dir() string { return s.dir }

// Addr returns "127.0.0.1:port", or the path of the unix socket where the server
// listens on nothing else.
func (s *Server) Addr() string {
	if s.cfg.UnixOnly {
		return s.Socket()
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
}

// Port returns the TCP port.
func (s *Server) Port() int { return s.port }

// URL returns the address as a URL for this module's drivers, with the password if there is one.
func (s *Server) URL() string { return s.URLFor("", s.cfg.Password) }

// URLFor is URL for another user.
func (s *Server) URLFor(user, password string) string {
	u := s.kind.url
	u.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
	switch {
	case user == "" && password == "":
	case password == "":
		u.User = url.User(user)
	case user == "" && u.User != nil:
		u.User = url.UserPassword(u.User.Username(), password)
	default:
		u.User = url.UserPassword(user, password)
	}
	switch {
	case s.cfg.UnixOnly:
		u.Scheme, u.Host, u.Path = u.Scheme+"+unix", "", s.Socket()
	case s.certs != nil && s.cfg.Kind == KindNATS:
		u.Scheme = "tls"
	case s.certs != nil && s.cfg.Kind != KindMariaDB:
		u.Scheme += "s"
	}
	return u.String()
}

// CAFile returns the path of the authority's certificate; empty without TLS.
func (s *Server) CAFile() string {
	if s.certs == nil {
		return ""
	}
	return s.certs.caFile
}

// ClientCert returns the paths of a certificate and its key that the server accepts
// from clients; empty without TLS.
func (s *Server) ClientCert() (cert, key string) {
	if s.certs == nil {
		return "", ""
	}
	return s.certs.certFile, s.certs.keyFile
}

// TLSConfig returns a client's TLS settings: the server's authority, and a certificate if the
// server asks for one; nil without TLS.
func (s *Server) TLSConfig() *tls.Config {
	if s.certs == nil {
		return nil
	}
	return s.certs.client.Clone()
}

// Pid returns the process's id; 0 if it does not run.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.running(); p != nil {
		return p.pid
	}
	return 0
}

// running returns the process unless it has ended. The caller holds s.mu.
func (s *Server) running() *process {
	if s.proc == nil {
		return nil
	}
	select {
	case <-s.proc.done:
		return nil
	default:
		return s.proc
	}
}

var errNotRunning = errors.New("the server does not run")

// Pause stops the server's processes where they are (SIGSTOP): connections stay open
// and get no answer.
func (s *Server) Pause() error {
	return s.signal((*process).pause)
}

func (s *Server) signal(f func(*process) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.running()
	if p == nil {
		return errNotRunning
	}
	return f(p)
}

// Resume lets a paused server go on (SIGCONT).
func (s *Server) Resume() error {
	return s.signal((*process).resume)
}

// Kill ends the server as a crash does (SIGKILL), and returns when it has ended. Data that it
// had not written to disk are lost. It does nothing if the server does not run.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.killLocked()
}

func (s *Server) killLocked() error {
	p := s.running()
	if p == nil {
		return nil
	}
	return p.kill()
}

// Stop asks the server to end (SIGTERM; for postgres SIGINT, its fast shutdown), and returns
// when it has. It resumes a paused server first. The server's configuration decides which data
// it saves. It does nothing if the server does not run.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopLocked(false)
}

func (s *Server) stopLocked(save bool) error {
	p := s.running()
	if p == nil {
		return nil
	}
	if err := p.resume(); err != nil {
		return err
	}
	if save && s.kind.save != nil {
		if err := s.kind.save(s); err != nil {
			return fmt.Errorf("save: %w", err)
		}
	}
	if err := p.stopSignal(s.cfg.Kind); err != nil {
		return err
	}
	return p.wait(stopTimeout)
}

// Start starts a server that was stopped or killed, on the same address and with the data in
// its folder, and returns when it serves.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.startAgain()
}

func (s *Server) startAgain() error {
	if s.gone {
		return errors.New("the server is closed")
	}
	if s.running() != nil {
		return errors.New("the server runs")
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		err := s.start(ctx)
		if err == nil || ctx.Err() != nil || !s.addressInUse() {
			return err
		}
		// Another program uses the port for a moment, or a killed postgres has not ended yet.
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Restart stops the server in order, after it has written all its data to disk, and starts it
// again with these data. A server that does not run is only started.
func (s *Server) Restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.stopLocked(true); err != nil {
		return err
	}
	return s.startAgain()
}

// RestartEmpty kills the server, removes its data and starts it again. (A node of a Cluster
// keeps its membership.)
func (s *Server) RestartEmpty() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.killLocked(); err != nil {
		return err
	}
	wipe := s.kind.wipe
	if wipe == nil {
		wipe = func(s *Server) error { return os.RemoveAll(s.dataDir()) }
	}
	if err := wipe(s); err != nil {
		return err
	}
	return s.startAgain()
}

// StartAgain starts a killed server again, with its data if memory is set, and otherwise without:
// see redlocktest.Faults. It fails if the server has been told to keep no data: a driver would be
// blamed for locks that the server forgot.
func (s *Server) StartAgain(memory bool) error {
	if !memory {
		return s.RestartEmpty()
	}
	if lacks := s.forgets(); lacks != "" {
		return fmt.Errorf("%s at %s cannot start again with its data: it has kept none; start it with %s", s.cfg.Kind, s.Addr(), lacks)
	}
	return s.Start()
}

// forgets returns the option without which the server keeps no data, or "".
func (s *Server) forgets() string {
	switch {
	case s.cfg.speaksRESP() && s.cfg.sentinel == "":
		appends, saves := "no", `""`
		for _, x := range s.cfg.Settings {
			switch x.Name {
			case "appendonly":
				appends = x.Value
			case "save":
				saves = x.Value
			}
		}
		if appends != "yes" && saves == `""` {
			return "WithAppendOnly"
		}
	case s.cfg.Kind == KindCommand:
		if all, err := os.ReadDir(s.dataDir()); err == nil && len(all) == 0 {
			return "an option that makes it keep data in {data}, such as Redis's --appendonly yes"
		}
	}
	return ""
}

// Close kills the server and removes its folder, unless Config.Dir names it. A second call
// returns nil.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil
	}
	s.gone = true
	var err error
	if p := s.running(); p != nil {
		err = p.end(s.cfg.Kind == KindPostgres)
	}
	err = errors.Join(err, s.releasePorts(), s.guard.close())
	if s.cfg.Dir == "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}

func (s *Server) logFile() string    { return filepath.Join(s.dir, "log") }
func (s *Server) configFile() string { return filepath.Join(s.dir, "conf") }
func (s *Server) dataDir() string    { return filepath.Join(s.dir, "data") }

// config writes the configuration file: the lines, with the caller's settings at the end, each in this
// format.
func (s *Server) config(lines *strings.Builder, format string) error {
	for _, x := range s.cfg.Settings {
		fmt.Fprintf(lines, format, x.Name, x.Value)
	}
	if err := os.WriteFile(s.configFile(), []byte(lines.String()), 0o600); err != nil {
		return err
	}
	return giveAway(s.configFile(), s.cfg.Kind)
}

// LogTail returns the last lines of the server's log.
func (s *Server) LogTail(lines int) string {
	text, _ := os.ReadFile(s.logFile()) // there may be none yet
	all := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}
