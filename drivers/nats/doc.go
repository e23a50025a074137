// Package nats locks in NATS JetStream, version 2.11 or newer.
//
//	nats://user:password@a:4222,b:4222,c:4222/bucket?ttl=10s
//	tls://a:4222,b:4222,c:4222/bucket?ca=/etc/nats/ca.pem&creds=/etc/nats/app.creds
//
// It is registered as "nats", and as "tls" for TLS, with package dlock; New takes the application's
// own connection. The package is a module of its own.
//
// # What is stored
//
// The bucket is a stream, KV_bucket, which the driver makes at its first use: in a file, on three
// servers of a cluster and on a lone server otherwise (nats stream edit KV_bucket --replicas changes
// that). The bucket is "dlock" unless the URL names another one. In the subjects EPOCH is drawn when
// the bucket is made, and KEY is the prefix and the key, percent-encoded.
//
//	$KV.bucket.EPOCH.k.KEY        the holder, or that the lock was freed; with the lock's TTL
//	$KV.bucket.EPOCH.w.KEY.ID     a waiter, for ten minutes
//	$KV.bucket.EPOCH.c.CLIENT     a question whether a majority serves, for a second
//	$DLOCK.bucket.EPOCH.>         the same messages once they are stored, which waiters hear
//
// A lock is taken by a message that the server accepts only behind the message that was read before
// it. A renewal and a release are such messages, too: a request that arrives late finds another
// message, and does nothing. A bucket that somebody else made or changed, so that it may forget a
// lock or keep one for ever, is refused by name. If it is deleted its locks are lost, and the holders
// learn of it at their next renewal.
//
// # Leases
//
// The server counts a TTL in whole seconds, so it is rounded up, and the least is one second. It
// counts by its wall clock: one that leaps ahead ends locks too early, as it does in Redis.
//
// With three servers a grant, a renewal, and the verdict that a lock is lost or held rest on a
// majority: a leader that was cut off takes ten seconds to notice it. While the servers elect one,
// which takes seconds, a call asks again for half of its time before it fails.
//
// By default a server writes to its disk only every two minutes. A lock then survives the end of a
// server's process, and the loss of a minority of the machines. If most of them may lose power at the
// same time, set "sync_interval: always" in their jetstream block: else acknowledged locks can be
// forgotten, and given away twice, with the same tokens.
//
// # Waiting
//
// Waiters of all clients are served in the order in which they came. A release names the first of
// them, for which the lock is then kept for half a second; if it does not come, its process is taken
// for dead and leaves the queue. A waiter looks every 15 s, with two requests, and if it left the queue
// though it lives, it takes a place again.
//
// # Tokens
//
// A token is the time in microseconds at which the bucket was made, plus the number of the message
// that took the lock. Numbers rise with every message of the bucket, whatever the clocks do. Such
// tokens fall behind the time: before you come back to a bucket after a time with another backend,
// delete it while no lock is held, and the new one gives larger tokens.
//
// # Requests
//
// A lock that this client freed last takes one request. A lock of another client takes two more, to
// see its last message; if it is held, a majority confirms that on several servers, with one more. A
// release takes two: it asks for the first waiter, and frees the lock.
//
// # Parameters
//
//	ttl, prefix      as everywhere
//	call_timeout     for an attempt, a renewal or a release (1s)
//	creds            a file with a user's JWT and key
//	ca               TLS: a file of PEM certificates to trust instead of the system's
//	cert, key        TLS: files of the client's certificate
//	server_name      TLS: the name to expect in the servers' certificates
//	insecure         TLS: true does not verify the servers' certificates
//
// A user without a password is a token. A user needs the permission to publish to $KV.bucket.> and to
// $JS.API.STREAM.*.KV_bucket and $JS.API.STREAM.MSG.GET.KV_bucket, and to subscribe to _INBOX.> and
// $DLOCK.bucket.>.
package nats
