module github.com/redlock-go/redlock/drivers/zookeeper

go 1.25.0

require (
	github.com/go-zookeeper/zk v1.0.4
	github.com/redlock-go/redlock v0.1.0
)

require (
	github.com/anishathalye/porcupine v1.0.2 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/sys v0.44.0 // indirect
)

replace github.com/redlock-go/redlock => ../..
