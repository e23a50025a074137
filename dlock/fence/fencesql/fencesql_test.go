package fencesql

import "testing"

func TestNamesAreQuoted(t *testing.T) {
	if got := Postgres.quote(`app.mar"ks`); got != `"app"."mar""ks"` {
		t.Error(got)
	}
	if got := MySQL.quote("mar`ks"); got != "`mar``ks`" {
		t.Error(got)
	}
}
