module github.com/redlock-go/redlock/drivers/nats

go 1.25.0

require (
	github.com/nats-io/nats.go v1.48.0
	github.com/nats-io/nuid v1.0.1
	github.com/redlock-go/redlock v0.1.0
)

require (
	github.com/anishathalye/porcupine v1.0.2 // indirect
	github.com/klauspost/compress v1.18.0 // indirect
	github.com/nats-io/nkeys v0.4.11 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/crypto v0.37.0 // indirect
	golang.org/x/sys v0.44.0 // indirect
)

replace github.com/redlock-go/redlock => ../..
