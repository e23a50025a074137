package driver

import (
	"encoding/json"
	"fmt"
)

// MarshalJSON adds the verdict.
func (s *State) MarshalJSON() ([]byte, error) {
	type plain State
	return json.Marshal(struct {
		*plain
		Verdict string `json:"verdict"`
	}{(*plain)(s), s.Verdict()})
}

// MarshalText returns "exclusive" or "shared".
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// MarshalText returns "note", "warning" or "unsafe".
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText returns.
func (m *Mode) UnmarshalText(text []byte) error {
	return named(m, text, Exclusive, Shared)
}

// UnmarshalText reads what MarshalText returns.
func (s *Severity) UnmarshalText(text []byte) error {
	return named(s, text, SeverityNote, SeverityWarning, SeverityUnsafe)
}

// named sets v to the value with a name.
func named[T fmt.Stringer](v *T, name []byte, values ...T) error {
	for _, value := range values {
		if value.String() == string(name) {
			*v = value
			return nil
		}
	}
	return fmt.Errorf("unknown %T %q", *v, name)
}
