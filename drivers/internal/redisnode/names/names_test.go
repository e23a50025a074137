package names

import (
	"strings"
	"testing"
)

func TestNamesBesideALockShareItsSlotAndPrefixAndDiffer(t *testing.T) {
	if got := Slot("123456789"); got != 12739 {
		t.Fatalf("Slot = %d, want 12739 (CRC16 XMODEM 0x31C3)", got)
	}
	seen := map[string]string{}
	for _, prefix := range []string{"", "app:", "{app}:"} {
		for _, key := range []string{"k", "{k}", "a{k}b", "{}k", "{", "}", "a}b", "a{b", "{}", "}{", "{a}{b}", "{{a}}", "\x00", "ключ"} {
			n := Prefix(prefix)
			for _, name := range []string{n.Counter(key), n.WaitQueue(key)} {
				if Slot(name) != Slot(n.Lock(key)) {
					t.Errorf("%q is in another slot than %q", name, n.Lock(key))
				}
				if name[:len(prefix)] != prefix || !strings.HasPrefix(name[len(prefix):], Layout) {
					t.Errorf("%q does not begin with %q and the layout", name, prefix)
				}
				if other, ok := seen[name]; ok {
					t.Errorf("%q stands beside %q and %q", name, other, n.Lock(key))
				}
				seen[name] = n.Lock(key)
			}
			if got, ours := n.Counted(n.Counter(key)); !ours || got != key {
				t.Errorf("Counted says that the counter %q belongs to %q, want %q", n.Counter(key), got, key)
			}
		}
	}
}

func TestOwnersAreToldFromForeignValues(t *testing.T) {
	for value, want := range map[string]struct {
		owner  string
		tokens uint32
		fence  uint64
	}{
		"web-1/ab/2|1732161234567890": {"web-1/ab/2", 0, 1732161234567890},
		"web-1/ab/2+256|12":           {"web-1/ab/2", 256, 12},
		"web+1/ab/2+16384|12":         {"web+1/ab/2", 16384, 12},
		"a+16385|12":                  {"a+16385", 0, 12},
		"a+02|12":                     {"a+02", 0, 12},
		"a+1|12":                      {"a+1", 0, 12},
		"+2|12":                       {"+2", 0, 12},
		"a+2|":                        {"a+2|", 0, 0},
		"a|":                          {"a|", 0, 0},
		"|12":                         {"|12", 0, 0},
		"a|012":                       {"a|012", 0, 0},
		"a|1|2":                       {"a|1|2", 0, 0},
		"a|-1":                        {"a|-1", 0, 0},
		"a|9007199254740992":          {"a|9007199254740992", 0, 0},
		"":                            {"", 0, 0},
		"c29tZSB2YWx1ZQ==":            {"c29tZSB2YWx1ZQ==", 0, 0},
	} {
		owner, tokens, fence := Parse(value)
		if owner != want.owner || tokens != want.tokens || fence != want.fence {
			t.Errorf("Parse(%q) = %q, %d, %d", value, owner, tokens, fence)
		}
	}
}
