package driver

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"
)

func TestStatesAndFindingsInJSON(t *testing.T) {
	since := time.Date(2026, 11, 22, 14, 0, 0, 0, time.UTC)
	for want, v := range map[string]any{
		`{"key":"k","waiting":0,"verdict":"free"}`: &State{Key: "k"},
		`{"key":"k","mode":"shared","holders":[{"owner":"a","token":7,"since":"2026-11-22T14:00:00Z","ttl_ns":2000000000}],"token":7,"waiting":1,"queue":[{"owner":"b"}],"verdict":"held"}`: &State{
			Key: "k", Mode: Shared, Holders: []Holder{{Owner: "a", Fence: 7, Since: since, TTL: 2 * time.Second}}, Fence: 7, Waiters: 1, Queue: []Holder{{Owner: "b"}},
		},
		`{"key":"k","waiting":0,"nodes":[{"node":"n","latency_ns":5,"error":"refused"}],"verdict":"free"}`: &State{
			Key: "k", Nodes: []NodeState{{Node: "n", Latency: 5, Err: "refused"}},
		},
		`{"code":"fsync","severity":"unsafe","summary":"s"}`: &Diagnostic{Code: "fsync", Severity: SeverityUnsafe, Summary: "s"},
	} {
		if got, err := json.Marshal(v); err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
		again := reflect.New(reflect.TypeOf(v))
		if err := json.Unmarshal([]byte(want), again.Interface()); err != nil {
			t.Errorf("%s cannot be read: %v", want, err)
		} else if !reflect.DeepEqual(again.Elem().Interface(), v) {
			t.Errorf("%s is read as %+v", want, again.Elem())
		}
	}
}
