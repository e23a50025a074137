package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/bench"
	"github.com/redlock-go/redlock/redlocktest/server"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// overEtcd returns the locks of etcd, which stand beside those of one Redis on an etcd
// of their own.
func overEtcd() []bench.Contestant {
	return []bench.Contestant{{
		Name: "etcd concurrency", Kind: bench.Peer, Client: "etcd", Waits: true,
		How: "concurrency.Mutex of etcd's client v3 with one session for each client, on an etcd of its own with its defaults: one member, which syncs every change to disk. " +
			"It counts TTLs in whole seconds, of which an etcd takes no less than two",
		Serves: func(kind server.Kind, nodes int) bool { return kind == server.KindRedis && nodes == 1 },
		Brings: startEtcd,
		Open: func(ctx context.Context, s *bench.Setup) (bench.Locker, error) {
			c, err := connectEtcd(s.Nodes[0].Addr)
			if err != nil {
				return nil, err
			}
			const least = 2 * time.Second
			ttl := max(s.TTL, least).Round(time.Second)
			session, err := newSession(ctx, c, int(ttl.Seconds()))
			if err != nil {
				return nil, errors.Join(err, c.Close())
			}
			return etcdLocker{c, session}, nil
		},
	}}
}

func connectEtcd(addr string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
}

// newSession gives up with ctx; the session itself does not end with it.
func newSession(ctx context.Context, c *clientv3.Client, seconds int) (*concurrency.Session, error) {
	lease, err := c.Grant(ctx, int64(seconds))
	if err != nil {
		return nil, err
	}
	return concurrency.NewSession(c, concurrency.WithTTL(seconds), concurrency.WithLease(lease.ID))
}

type etcdLocker struct {
	c *clientv3.Client
	s *concurrency.Session
}

func (l etcdLocker) Lock(ctx context.Context, key string, wait bool) (bench.Held, error) {
	m := concurrency.NewMutex(l.s, key)
	take := m.TryLock
	if wait {
		take = m.Lock
	}
	if err := take(ctx); err != nil {
		return nil, err
	}
	return etcdHeld{m, l.s.Done()}, nil
}

func (l etcdLocker) Close() error { return errors.Join(l.s.Close(), l.c.Close()) }

type etcdHeld struct {
	m    *concurrency.Mutex
	done <-chan struct{}
}

func (h etcdHeld) Renew(context.Context) error { return nil }
func (h etcdHeld) Done() <-chan struct{}       { return h.done }
func (h etcdHeld) Unlock() error               { return h.m.Unlock(context.Background()) }

// startEtcd starts an etcd that nobody else uses. A shell stands beside it that waits for
// the end of this process, however that comes, and then takes the etcd and its folder
// away.
func startEtcd(ctx context.Context) (*bench.Guest, error) {
	program, err := exec.LookPath("etcd")
	if err != nil {
		return nil, fmt.Errorf("%w: etcd (package etcd-server)", bench.ErrMissing)
	}
	folder, err := os.MkdirTemp("", "benchmark-etcd-")
	if err != nil {
		return nil, err
	}
	addrs, err := freeAddrs(2)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	client, peer := "http://"+addrs[0], "http://"+addrs[1]
	const guardian = `folder=$1; shift; "$@" >"$folder/log" 2>&1 & read _; kill -9 $!; wait; rm -rf "$folder"`
	shell := exec.Command("sh", "-c", guardian, "sh", folder, program, "--name", "benchmark", "--data-dir", filepath.Join(folder, "data"),
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "benchmark="+peer)
	life, err := shell.StdinPipe()
	if err == nil {
		err = shell.Start()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	e := &etcd{shell: shell, life: life}
	g := &bench.Guest{Node: bench.Node{Kind: "etcd", Addr: addrs[0], Direct: addrs[0]}, Left: e.left, Close: e.close}
	if g.Version, err = e.wait(ctx, addrs[0]); err != nil {
		log, _ := os.ReadFile(filepath.Join(folder, "log")) // there may be none yet
		return nil, errors.Join(fmt.Errorf("etcd does not answer: %w: %s", err, lastLine(log)), e.close())
	}
	return g, nil
}

// freeAddrs returns addresses on which nobody listens.
func freeAddrs(n int) (addrs []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // it has told its address
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

func lastLine(log []byte) string {
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return lines[len(lines)-1]
}

// etcd is a server that was started, and a client of it.
type etcd struct {
	shell  *exec.Cmd
	life   io.Closer
	client *clientv3.Client
}

// wait waits until it answers, and returns its version.
func (e *etcd) wait(ctx context.Context, addr string) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if e.client, err = connectEtcd(addr); err != nil {
		return "", err
	}
	status, err := e.client.Status(ctx, addr)
	for err != nil && ctx.Err() == nil {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
		status, err = e.client.Status(ctx, addr)
	}
	if err != nil {
		return "", err
	}
	return "etcd " + status.Version, nil
}

// left counts the locks under keys.
func (e *etcd) left(ctx context.Context, keys string) (int, error) {
	r, err := e.client.Get(ctx, keys, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return int(r.Count), nil
}

func (e *etcd) close() error {
	var errs []error
	if e.client != nil {
		errs = append(errs, e.client.Close())
	}
	return errors.Join(append(errs, e.life.Close(), e.shell.Wait())...)
}
