package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certificates are an authority made for one server, and a certificate for the server and its
// clients.
type certificates struct {
	caFile, certFile, keyFile string
	client                    *tls.Config
}

// randomText returns a secret.
func randomText() string { return rand.Text() }

// newCertificates makes an authority and writes ca.pem, cert.pem and key.pem.
func newCertificates(dir string) (*certificates, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	ca := template("redlocktest authority", 1)
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	leaf := template("localhost", 2)
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	leaf.DNSNames, leaf.IPAddresses = []string{"localhost"}, []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	c := certificatesIn(dir)
	for _, f := range []struct {
		path, kind string
		der        []byte
	}{{c.caFile, "CERTIFICATE", caDER}, {c.certFile, "CERTIFICATE", leafDER}, {c.keyFile, "PRIVATE KEY", keyDER}} {
		if err := os.WriteFile(f.path, pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der}), 0o600); err != nil {
			return nil, err
		}
	}
	return c, c.makeClient(caDER)
}

func certificatesIn(dir string) *certificates {
	return &certificates{
		caFile: filepath.Join(dir, "ca.pem"), certFile: filepath.Join(dir, "cert.pem"), keyFile: filepath.Join(dir, "key.pem"),
	}
}

// copyTo copies the certificates into another server's folder, because the first server may be
// closed earlier.
func (c *certificates) copyTo(dir string) (*certificates, error) {
	copied := certificatesIn(dir)
	copied.client = c.client
	err := errors.Join(copyFile(c.caFile, copied.caFile), copyFile(c.certFile, copied.certFile), copyFile(c.keyFile, copied.keyFile))
	return copied, err
}

// makeClient makes a client's certificate.
func (c *certificates) makeClient(caDER []byte) error {
	ca, err := x509.ParseCertificate(caDER)
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	c.client = &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, ServerName: "localhost", MinVersion: tls.VersionTLS12}
	return nil
}

// template has the common fields of both certificates. They are valid for a day, and from an
// hour ago, because a test may set the clock back.
func template(name string, serial int64) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(24 * time.Hour),
	}
}
