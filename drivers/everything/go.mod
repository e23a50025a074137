module github.com/redlock-go/redlock/drivers/everything

go 1.25.0

require (
	github.com/redis/go-redis/v9 v9.7.3
	github.com/redlock-go/redlock v0.1.0
	github.com/redlock-go/redlock/drivers/consul v0.1.0
	github.com/redlock-go/redlock/drivers/etcd v0.1.0
	github.com/redlock-go/redlock/drivers/nats v0.1.0
	github.com/redlock-go/redlock/drivers/sqltable v0.1.0
	github.com/redlock-go/redlock/drivers/zookeeper v0.1.0
)
