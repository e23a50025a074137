package dsn

import "testing"

func TestHasPassword(t *testing.T) {
	for u, want := range map[string]bool{
		"redis://user:pw@h:6379/0": true,
		"redis://:pw@h":            true,
		"redis://s3cr3t@h":         true, // its colon was forgotten
		"valkeys://s3cr3t@h:6379":  true,
		"etcd://s3cr3t@h:2379":     true,
		"redlock:redis://a:6379,redis://s3cr3t@b:6379,redis://c:6379": true,
		"redlock:postgres://u@a,redis://s3cr3t@b,redis://c":           true,
		"redis://h?pwd=x":               true,
		"redis://h?pass=x":              true,
		"redis://h?pasword=x":           true,
		"redis://h?passwrod=x":          true,
		"redis://h?sentinel_password=x": true,
		"postgres://h/db?PASSWD=x":      true,
		"redis://h:6379/0":              false,
		"redis+unix:///run/r.sock":      false,
		"redis://[::1]:6379/0":          false,
		"postgres://user@h1:5432,h2:5432/db?sslmode=require&passfile=/f": false,
		"mysql://user@h:3306/db": false,
		"file:///tmp/a@b":        false,
		"s3://user@bucket":       false, // no scheme of these drivers
	} {
		if got := HasPassword(u); got != want {
			t.Errorf("%s: %v, want %v", u, got, want)
		}
	}
}
