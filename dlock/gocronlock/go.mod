module github.com/redlock-go/redlock/dlock/gocronlock

go 1.25.0

replace github.com/redlock-go/redlock => ../../

require (
	github.com/go-co-op/gocron/v2 v2.16.1
	github.com/redlock-go/redlock v0.1.0
)

require (
	github.com/google/uuid v1.6.0 // indirect
	github.com/jonboulle/clockwork v0.5.0 // indirect
	github.com/robfig/cron/v3 v3.0.1 // indirect
)
