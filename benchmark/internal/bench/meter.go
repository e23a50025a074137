package bench

import (
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A meter reads what a measurement costs: this process and the servers.
type meter struct {
	at      time.Time
	cpu     time.Duration
	memory  runtime.MemStats
	servers []*server.Server
	info    serverInfo
}

// serverInfo is the sum over the servers.
type serverInfo struct {
	cpu      float64 // seconds
	commands float64
	bytes    float64 // in and out
}

// minus returns what was counted since.
func (i serverInfo) minus(before serverInfo) serverInfo {
	return serverInfo{i.cpu - before.cpu, i.commands - before.commands, i.bytes - before.bytes}
}

func startMeter(servers []*server.Server) *meter {
	m := &meter{servers: servers, info: readInfo(servers)}
	runtime.ReadMemStats(&m.memory)
	m.cpu, m.at = processCPU(), time.Now()
	return m
}

// stop adds what each of n locks cost to the measurement.
func (m *meter) stop(t *measurement, n int) (took time.Duration) {
	took = time.Since(m.at)
	cpu := processCPU() - m.cpu
	var after runtime.MemStats
	runtime.ReadMemStats(&after)
	info := readInfo(m.servers)
	if n == 0 {
		return took
	}
	per := float64(n)
	if m.cpu > 0 {
		t.add("client CPU", figures.Seconds, cpu.Seconds()/per)
	}
	t.add("allocations", figures.Count, float64(after.Mallocs-m.memory.Mallocs)/per)
	t.add("allocated", figures.Bytes, float64(after.TotalAlloc-m.memory.TotalAlloc)/per)
	if len(m.servers) > 0 && info.cpu > 0 {
		t.add("server CPU", figures.Seconds, (info.cpu-m.info.cpu)/per)
		t.add("server commands", figures.Count, (info.commands-m.info.commands)/per)
		t.add("wire", figures.Bytes, (info.bytes-m.info.bytes)/per)
	}
	return took
}

// readInfo asks the servers; one that does not answer counts nothing.
func readInfo(servers []*server.Server) (sum serverInfo) {
	for _, s := range servers {
		if s.Kind() != server.KindRedis && s.Kind() != server.KindValkey {
			continue
		}
		reply, _ := s.Do("INFO") // a server that is down has no figures
		text, _ := reply.(string)
		sum.cpu += infoField(text, "used_cpu_user") + infoField(text, "used_cpu_sys")
		sum.commands += infoField(text, "total_commands_processed")
		sum.bytes += infoField(text, "total_net_input_bytes") + infoField(text, "total_net_output_bytes")
	}
	return sum
}

// infoField returns a number of INFO; 0 if it is not there.
func infoField(info, name string) float64 {
	_, rest, found := strings.Cut(info, "\n"+name+":")
	if !found {
		return 0
	}
	field, _, _ := strings.Cut(rest, "\r")
	v, err := strconv.ParseFloat(field, 64)
	if err != nil {
		return 0
	}
	return v
}
