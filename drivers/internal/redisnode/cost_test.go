package redisnode

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// burst is a connection that sends many commands at once.
type burst struct {
	conn net.Conn
	in   *bufio.Reader
}

func newBurst(tb testing.TB, addr string) *burst {
	tb.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return &burst{conn, bufio.NewReaderSize(conn, 1<<20)}
}

// words encodes one command.
func words(b *bytes.Buffer, args ...string) {
	fmt.Fprintf(b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(b, "$%d\r\n%s\r\n", len(a), a)
	}
}

// send sends this many commands and reads their replies.
func (u *burst) send(tb testing.TB, commands []byte, n int) {
	tb.Helper()
	failed := make(chan error, 1)
	go func() {
		_, err := u.conn.Write(commands)
		failed <- err
	}()
	for range n {
		u.reply(tb)
	}
	if err := <-failed; err != nil {
		tb.Fatal(err)
	}
}

func (u *burst) reply(tb testing.TB) string {
	line, err := u.in.ReadString('\n')
	if err != nil {
		tb.Fatal(err)
	}
	n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
	switch line[0] {
	case '-':
		tb.Fatal(line)
	case '*':
		for range n {
			u.reply(tb)
		}
	case '$':
		if n >= 0 {
			b := make([]byte, n+2)
			if _, err := io.ReadFull(u.in, b); err != nil {
				tb.Fatal(err)
			}
			return string(b[:n])
		}
	}
	return strings.TrimSpace(line[1:])
}

// ask sends one command.
func (u *burst) ask(tb testing.TB, args ...string) string {
	var b bytes.Buffer
	words(&b, args...)
	if _, err := u.conn.Write(b.Bytes()); err != nil {
		tb.Fatal(err)
	}
	return u.reply(tb)
}

var cpuTime = regexp.MustCompile(`used_cpu_(?:user|sys)_main_thread:([0-9.]+)`)

// spent returns the processor time of the server's main thread.
func (u *burst) spent(tb testing.TB) (d time.Duration) {
	for _, m := range cpuTime.FindAllStringSubmatch(u.ask(tb, "INFO", "cpu"), -1) {
		s, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			tb.Fatal(err)
		}
		d += time.Duration(s * float64(time.Second))
	}
	return d
}

// BenchmarkPairCost measures what one acquire and its release cost the server, in µs of the
// processor time of its main thread: pipelined, by the number of pairs that are gathered. Each figure
// is the median of several bursts; low and high are the quartiles.
func BenchmarkPairCost(b *testing.B) {
	const pairs, bursts = 4096, 31
	for _, kind := range []server.Kind{server.KindRedis, server.KindValkey} {
		b.Run(string(kind), func(b *testing.B) {
			s := server.StartFor(b, kind)
			u := newBurst(b, s.Addr())
			run := regexp.MustCompile(`run_id:(\w+)`).FindStringSubmatch(u.ask(b, "INFO", "server"))[1]
			scripts := lua.Bind(run)
			bare := u.ask(b, "SCRIPT", "LOAD", "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0")
			for _, o := range []lua.Op{lua.Acquire, lua.Release, lua.Batch} {
				u.ask(b, "SCRIPT", "LOAD", scripts[o].Text)
			}
			key := func(i int) string { return "key:" + strconv.Itoa(i) }
			owner := func(i int) string { return "host/1234/0123456789abcdef" + strconv.Itoa(i) }
			token := strings.TrimPrefix(strconv.FormatInt(time.Now().UnixMicro(), 10), "")
			acquire := func(c *bytes.Buffer, i int) {
				words(c, "EVALSHA", scripts[lua.Acquire].SHA, "3", key(i), "redlock1:fence:{"+key(i)+"}", "redlock1:mark", "9007199254740991", owner(i), "10110", token, "130000")
			}
			release := func(c *bytes.Buffer, i int) {
				words(c, "EVALSHA", scripts[lua.Release].SHA, "1", key(i), "1", owner(i)+"|"+token, "redlock1:free:", "redlock1:queue:{"+key(i)+"}")
			}
			foreign := func(c *bytes.Buffer, i int) {
				words(c, "SET", key(i), owner(i), "NX", "PX", "10000")
				words(c, "EVALSHA", bare, "1", key(i), owner(i))
			}
			batch := func(c *bytes.Buffer, from, to int) int { // it releases the lock of the command before it
				n := strconv.Itoa(to - from)
				said := []string{"EVALSHA", scripts[lua.Batch].SHA, strconv.Itoa(2*(to-from) + 1)}
				for i := from; i < to; i++ {
					said = append(said, key((i-(to-from)+pairs)%pairs))
				}
				for i := from; i < to; i++ {
					said = append(said, key(i))
				}
				said = append(said, "redlock1:mark", "9007199254740991", "10110", "130000", n, n, "redlock1:queue:{", "redlock1:fence:{", strconv.Itoa(len(token)))
				for i := from; i < to; i++ {
					said = append(said, owner((i-(to-from)+pairs)%pairs)+"|"+token)
				}
				for i := from; i < to; i++ {
					said = append(said, owner(i)+"|"+token)
				}
				words(c, said...)
				return 1
			}
			measure := func(name string, gathered int, write func(c *bytes.Buffer, from, to int) int) {
				b.Run(name, func(b *testing.B) {
					var took []float64
					for range bursts {
						token = strconv.FormatInt(time.Now().UnixMicro(), 10)
						var c bytes.Buffer
						n := 0
						for i := 0; i < pairs; i += gathered {
							n += write(&c, i, i+gathered)
						}
						before := u.spent(b)
						u.send(b, c.Bytes(), n)
						took = append(took, float64(u.spent(b)-before)/pairs/1000)
						left := []string{"DEL"} // what the last script took
						for i := pairs - gathered; i < pairs; i++ {
							left = append(left, key(i))
						}
						u.ask(b, left...)
					}
					slices.Sort(took)
					b.ReportMetric(took[bursts/2], "µs/pair")
					b.ReportMetric(took[bursts/4], "µs/low")
					b.ReportMetric(took[3*bursts/4], "µs/high")
					b.ReportMetric(0, "ns/op")
				})
			}
			measure("SET+compare-and-delete", 1, func(c *bytes.Buffer, i, _ int) int { foreign(c, i); return 2 })
			measure("single", 1, func(c *bytes.Buffer, i, _ int) int { acquire(c, i); release(c, i); return 2 })
			for _, n := range []int{1, 2, 4, 8, 16, 64} {
				measure("gathered/"+strconv.Itoa(n), n, batch)
			}
		})
	}
}
