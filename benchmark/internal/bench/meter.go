package bench

import (
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A meter measures the cost of a measurement, in this process and on the servers.
type meter struct {
	at     time.Time
	cpu    time.Duration
	memory runtime.MemStats
	row    *Row
	info   serverInfo
	sent   int64 // requests, by the clients that count them
}

// serverInfo sums the figures of several servers.
type serverInfo struct {
	cpu      float64 // seconds
	commands float64
	bytes    float64 // received and sent
}

func startMeter(r *Row) *meter {
	m := &meter{row: r, info: readInfo(r.servers), sent: r.requests()}
	runtime.ReadMemStats(&m.memory)
	m.cpu, m.at = processCPU(), time.Now()
	return m
}

// stop adds the cost of each of n locks to the row.
func (m *meter) stop(n float64) {
	r := m.row
	cpu := processCPU() - m.cpu
	var after runtime.MemStats
	runtime.ReadMemStats(&after)
	info := readInfo(r.servers)
	if m.cpu > 0 {
		r.add("client CPU", figures.Seconds, cpu.Seconds()/n)
	}
	r.add("allocations", figures.Count, float64(after.Mallocs-m.memory.Mallocs)/n)
	if sent := r.requests(); sent > 0 {
		r.add("requests", figures.Count, float64(sent-m.sent)/n)
	}
	if info.cpu > 0 {
		r.add("server CPU", figures.Seconds, (info.cpu-m.info.cpu)/n)
		r.add("server commands", figures.Count, (info.commands-m.info.commands)/n)
		r.add("wire", figures.Bytes, (info.bytes-m.info.bytes)/n)
	}
}

// readInfo asks the servers. A server that does not answer adds nothing.
func readInfo(servers []*server.Server) (sum serverInfo) {
	for _, s := range servers {
		if s.Kind() != server.KindRedis && s.Kind() != server.KindValkey {
			continue
		}
		reply, _ := s.Do("INFO") // a server that is down has no figures
		text, _ := reply.(string)
		sum.cpu += InfoField(text, "used_cpu_user") + InfoField(text, "used_cpu_sys")
		sum.commands += InfoField(text, "total_commands_processed")
		sum.bytes += InfoField(text, "total_net_input_bytes") + InfoField(text, "total_net_output_bytes")
	}
	return sum
}

// InfoField returns a number from the text of INFO, or 0 if the field is missing.
func InfoField(info, name string) float64 {
	v, _ := strconv.ParseFloat(infoText(info, name), 64)
	return v
}

// InfoVersion returns the server's name and version from the text of INFO, such as "redis 7.0.15".
func InfoVersion(info string) string {
	for _, name := range []string{"valkey", "redis"} {
		if v := infoText(info, name+"_version"); v != "" {
			return name + " " + v
		}
	}
	return ""
}

func infoText(info, name string) string {
	_, rest, _ := strings.Cut(info, "\n"+name+":")
	field, _, _ := strings.Cut(rest, "\r")
	return field
}
