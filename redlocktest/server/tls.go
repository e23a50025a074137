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

// certificates are an authority made for one server, which is also the certificate of the server and
// its clients.
type certificates struct {
	caFile, certFile, keyFile string
	client                    *tls.Config
}

// randomText returns a secret.
func randomText() string { return rand.Text() }

// newCertificates makes a certificate that is its own authority, and writes ca.pem, cert.pem and
// key.pem. It is valid for a day, and from an hour ago, because a test may set the clock back.
func newCertificates(dir string) (*certificates, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
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
	}{{c.caFile, "CERTIFICATE", der}, {c.certFile, "CERTIFICATE", der}, {c.keyFile, "PRIVATE KEY", keyDER}} {
		if err := os.WriteFile(f.path, pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der}), 0o600); err != nil {
			return nil, err
		}
	}
	return c, c.makeClient(der)
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
	return copied, errors.Join(concat(copied.caFile, c.caFile), concat(copied.certFile, c.certFile), concat(copied.keyFile, c.keyFile))
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
