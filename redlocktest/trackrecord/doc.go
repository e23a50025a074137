// Package trackrecord tests the locks of other libraries, by drivers over redsync, redislock and
// valkeylock: what the conformance suite finds in them (README.md), and that their locks and ours
// exclude each other on one server, so that services can migrate one at a time. It is a module of its
// own, so that users of this library do not get the other libraries as dependencies.
package trackrecord
