// Package etcd locks in etcd.
package etcd
