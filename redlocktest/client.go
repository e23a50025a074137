package redlocktest

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/redlocktest/internal/wallclock"
)

// envClient is the environment variable that tells a process to serve as a Client of its parent.
const envClient = "REDLOCKTEST_CLIENT"

// ServeClient prepares this program for StartClient. It returns at once, unless StartClient
// started this process. In that case it opens the requested backend, serves it to the parent
// process, and ends this process. Call it first in TestMain:
//
//	func TestMain(m *testing.M) {
//		redlocktest.ServeClient(func(url string) (driver.Backend, error) { return dlock.OpenBackend(url) })
//		os.Exit(m.Run())
//	}
func ServeClient(open func(url string) (driver.Backend, error)) {
	if os.Getenv(envClient) == "" {
		return
	}
	if err := serveClient(os.Stdin, os.Stdout, open); err != nil {
		fmt.Fprintf(os.Stderr, "redlocktest: a client in a process of its own: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// wireRequest is a call of the backend, or the end of the context of a call under way.
type wireRequest struct {
	ID       int64
	Do       string // "open", "clock", "acquire", "renew", "release", "cancel"
	URL      string
	Lease    int64
	Request  *driver.Request
	Renewal  *driver.Renewal
	Deadline time.Duration // the time until the context's deadline; zero: no deadline
	Ahead    time.Duration // of the machine's wall clock
}

// wireReply is the answer to a wireRequest.
type wireReply struct {
	ID      int64
	Info    *driver.Info
	Lease   int64
	Expires int64 // Unix time in nanoseconds; zero: none
	Fence   uint64
	Voted   bool
	CanLose bool // the grant has a channel Lost
	Gone    bool // that channel is closed

	Verdict  verdict // of the error
	Text     string
	Deadline bool // the error is context.DeadlineExceeded, too
	Canceled bool // or context.Canceled
	Held     *driver.HeldError
	After    time.Duration // RefusedError.RetryAfter
}

// setError describes an error.
func (r *wireReply) setError(err error) {
	if r.Verdict = classify(err); err == nil {
		return
	}
	r.Text = err.Error()
	r.Deadline, r.Canceled = errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled)
	errors.As(err, &r.Held)
	if no := new(driver.RefusedError); errors.As(err, &no) {
		r.After = no.RetryAfter
	}
}

// err rebuilds the error that setError described.
func (r *wireReply) err() error {
	var err error
	switch r.Verdict {
	case granted:
		return nil
	case held:
		err = cmp.Or(r.Held, &driver.HeldError{})
	case lost:
		err = driver.ErrLost
	case later, refused:
		err = &driver.RefusedError{Reason: r.Text, RetryAfter: r.After}
	case invalid:
		err = driver.Invalid("request", "%s", r.Text)
	case closed:
		err = driver.ErrClosed
	default:
		err = errors.New(r.Text)
	}
	if r.Deadline {
		err = errors.Join(err, context.DeadlineExceeded)
	}
	if r.Canceled {
		err = errors.Join(err, context.Canceled)
	}
	return err
}

// setGrant describes a grant of a process whose wall clock is ahead by this time.
func (r *wireReply) setGrant(g driver.Grant, ahead time.Duration) {
	r.Fence, r.Voted, r.CanLose = g.Fence, len(g.Votes) > 0, g.Lost != nil
	if !g.Expires.IsZero() {
		r.Expires = g.Expires.Add(-ahead).UnixNano()
	}
}

// grant rebuilds the grant that setGrant described.
func (r *wireReply) grant() driver.Grant {
	g := driver.Grant{Fence: r.Fence}
	if r.Expires != 0 {
		g.Expires = time.Unix(0, r.Expires)
	}
	if r.Voted {
		g.Votes = make([]quorum.Vote, 1)
	}
	return g
}

// serveClient serves one backend until in ends.
func serveClient(in io.Reader, out io.Writer, open func(string) (driver.Backend, error)) error {
	requests, replies := json.NewDecoder(bufio.NewReader(in)), json.NewEncoder(out)
	var first wireRequest
	if err := requests.Decode(&first); err != nil {
		return err
	}
	b, err := open(first.URL)
	reply := wireReply{ID: first.ID}
	if reply.setError(err); err == nil {
		info := b.Info()
		reply.Info = &info
	}
	if err := replies.Encode(&reply); err != nil || reply.Info == nil {
		return err
	}
	s := &clientServer{backend: b, replies: replies, leases: map[int64]driver.Lease{}, cancels: map[int64]context.CancelFunc{}}
	var calls sync.WaitGroup
	for {
		var req wireRequest
		if err = requests.Decode(&req); err != nil {
			break
		}
		if req.Do == "cancel" {
			s.end(req.ID)
			continue
		}
		ctx := s.begin(&req)
		calls.Go(func() { defer s.end(req.ID); s.serve(ctx, &req) })
	}
	err = b.Close()
	calls.Wait()
	return err
}

// clientServer is the state of a process that serves a backend.
type clientServer struct {
	backend driver.Backend
	ahead   time.Duration // how far the process's wall clock is ahead of the machine's

	mu      sync.Mutex
	replies *json.Encoder
	leases  map[int64]driver.Lease // by the request that acquired them
	cancels map[int64]context.CancelFunc
}

func (s *clientServer) begin(req *wireRequest) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	if req.Deadline > 0 {
		ctx, cancel = context.WithTimeout(context.Background(), req.Deadline)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancels[req.ID] = cancel
	return ctx
}

func (s *clientServer) end(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.cancels[id]; cancel != nil {
		cancel()
		delete(s.cancels, id)
	}
}

// serve makes one call and answers.
func (s *clientServer) serve(ctx context.Context, req *wireRequest) {
	reply := wireReply{ID: req.ID, Lease: req.Lease}
	s.mu.Lock()
	l := s.leases[req.Lease]
	s.mu.Unlock()
	var err error
	switch {
	case req.Do == "clock": // before the first lease
		if err = wallclock.Set(req.Ahead); err == nil {
			s.ahead = req.Ahead
		}
	case req.Do == "acquire":
		reply.Lease = req.ID
		if l, err = s.backend.Acquire(ctx, req.Request); err == nil {
			reply.setGrant(l.Grant(), s.ahead)
		}
	case l == nil:
		err = driver.ErrLost // it was released
	case req.Do == "renew":
		before := l.Grant().Lost
		var g driver.Grant
		if g, err = l.Renew(ctx, req.Renewal); err == nil {
			reply.setGrant(g, s.ahead)
		}
		reply.Gone = over(before) || over(l.Grant().Lost)
	default:
		reply.Gone = over(l.Grant().Lost) // before Release, which may close Lost by itself
		err = l.Release(ctx)
	}
	reply.setError(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch v := reply.Verdict; {
	case req.Do == "acquire" && v == granted:
		s.leases[req.ID] = l
	case req.Do == "release" && (v == granted || v == lost):
		delete(s.leases, req.Lease)
	}
	_ = s.replies.Encode(&reply) // the parent may have ended
}

// A Client is a backend in a process of its own. Kill ends it without any clean-up, and Pause
// stops it at any instant, which is impossible for a backend in the same process.
type Client struct {
	info   driver.Info
	cmd    *exec.Cmd
	ended  chan struct{} // closed when the process has ended
	pipe   io.WriteCloser
	closes sync.Once

	mu      sync.Mutex
	last    int64
	waiting map[int64]chan wireReply
	gone    bool
}

// StartClient starts this program again, as a process that opens url and serves it. The program
// must call ServeClient. The URL reaches it by a pipe, so that its password stays out of the list
// of processes. The process ends with this one.
func StartClient(url string) (*Client, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envClient+"=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = dieWithUs()
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c := &Client{cmd: cmd, pipe: in, ended: make(chan struct{}), waiting: map[int64]chan wireReply{}}
	started := make(chan error)
	go c.process(out, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("redlocktest: start a client: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	reply, err := c.call(ctx, &wireRequest{Do: "open", URL: url})
	if err == nil && reply.Info == nil {
		err = errors.New("it does not answer as a client: does the program call ServeClient?")
	}
	if err != nil {
		c.Kill()
		return nil, fmt.Errorf("redlocktest: a client in a process of its own: %w", err)
	}
	c.info = *reply.Info
	return c, nil
}

// setClock puts the wall clock of the process ahead of the machine's, or behind it if negative, by
// whole seconds. It must come before the first Acquire.
func (c *Client) setClock(ctx context.Context, ahead time.Duration) error {
	_, err := c.call(ctx, &wireRequest{Do: "clock", Ahead: ahead})
	return err
}

// process starts the process, reads its answers, and waits for its end, all on one thread: on
// Linux the kernel kills the process when the thread that started it ends.
func (c *Client) process(out io.Reader, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := c.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	for replies := json.NewDecoder(bufio.NewReader(out)); ; {
		var r wireReply
		if replies.Decode(&r) != nil {
			break
		}
		c.receive(&r)
	}
	_ = c.cmd.Process.Kill() // skip other output
	_ = c.cmd.Wait()         // how it ended does not matter
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	for _, answered := range c.waiting {
		close(answered)
	}
	c.waiting = nil
	close(c.ended)
}

// receive passes an answer on to its call.
func (c *Client) receive(r *wireReply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if answered := c.waiting[r.ID]; answered != nil {
		answered <- *r
		delete(c.waiting, r.ID)
	}
}

var errProcessGone = errors.New("the client's process is gone")

// call makes one call, and waits for its answer as long as the process lives, and returns the error
// in the answer. It passes the end of ctx on to the backend, which then answers.
func (c *Client) call(ctx context.Context, req *wireRequest) (wireReply, error) {
	if deadline, ok := ctx.Deadline(); ok {
		req.Deadline = max(time.Until(deadline), 1)
	}
	answered := make(chan wireReply, 1)
	c.mu.Lock()
	if c.gone {
		c.mu.Unlock()
		return wireReply{}, errProcessGone
	}
	c.last++
	req.ID = c.last
	c.waiting[req.ID] = answered
	err := c.send(req)
	c.mu.Unlock()
	if err != nil {
		<-c.ended
		return wireReply{}, errProcessGone
	}
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, waits := c.waiting[req.ID]; waits && !c.gone {
			_ = c.send(&wireRequest{ID: req.ID, Do: "cancel"})
		}
	})
	defer stop()
	r, ok := <-answered
	if !ok {
		return wireReply{}, errProcessGone
	}
	return r, r.err()
}

// send writes a line. The caller holds c.mu. The pipe's buffer holds all requests that a
// stopped process can get.
func (c *Client) send(req *wireRequest) error {
	line, err := json.Marshal(req) //nolint:staticcheck // Acquire refuses a Quorum, which has a function
	if err != nil {
		return err
	}
	_, err = c.pipe.Write(append(line, '\n'))
	return err
}

// Acquire calls the backend's Acquire.
func (c *Client) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if req.Quorum != nil {
		return nil, driver.Invalid("Quorum", "is for backends in this process: its clocks cannot be sent to another")
	}
	r, err := c.call(ctx, &wireRequest{Do: "acquire", Request: req})
	if err != nil {
		return nil, err
	}
	l := &clientLease{client: c, id: r.Lease, grant: r.grant()}
	if r.CanLose {
		l.lost = make(chan struct{})
		l.grant.Lost = l.lost
	}
	return l, nil
}

// Info returns the backend's Info.
func (c *Client) Info() driver.Info { return c.info }

// Close closes the backend, and ends its process.
func (c *Client) Close() error {
	c.closes.Do(func() {
		_ = c.Resume() // a stopped process cannot end
		_ = c.pipe.Close()
		t := time.AfterFunc(20*time.Second, c.Kill)
		defer t.Stop()
		<-c.ended
	})
	return nil
}

// Kill ends the process at once, as SIGKILL does, and returns when it has ended.
func (c *Client) Kill() {
	_ = c.cmd.Process.Kill() // it may have ended
	_ = c.pipe.Close()
	<-c.ended
}

// Pause stops the process (SIGSTOP) and Resume lets it go on (SIGCONT).
func (c *Client) Pause() error  { return stopProcess(c.cmd.Process) }
func (c *Client) Resume() error { return continueProcess(c.cmd.Process) }

// clientLease is a lease of a Client. Once a call is answered, its Lost is closed if the backend had
// learned of the loss before that call; before the next call, or from a process that is gone, nothing
// is heard.
type clientLease struct {
	client *Client
	id     int64

	mu    sync.Mutex
	lost  chan struct{} // nil: it cannot tell
	grant driver.Grant
}

// call makes a call of the lease.
func (l *clientLease) call(ctx context.Context, req *wireRequest) (wireReply, error) {
	req.Lease = l.id
	r, err := l.client.call(ctx, req)
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Gone && l.lost != nil && !over(l.lost) {
		close(l.lost)
	}
	return r, err
}

func (l *clientLease) Grant() driver.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.grant
}

func (l *clientLease) Renew(ctx context.Context, renewal *driver.Renewal) (driver.Grant, error) {
	r, err := l.call(ctx, &wireRequest{Do: "renew", Renewal: renewal})
	if err != nil {
		return driver.Grant{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grant.Expires = r.grant().Expires
	return l.grant, nil
}

func (l *clientLease) Release(ctx context.Context) error {
	_, err := l.call(ctx, &wireRequest{Do: "release"})
	return err
}
