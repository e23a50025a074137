package etcd

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/redlock-go/redlock/driver"
)

// code returns the gRPC code of the client's error.
func code(err error) codes.Code {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code()
	}
	if c := status.FromContextError(err).Code(); c != codes.Unknown {
		return c // of a time limit of the driver's own: base.Call knows the caller's
	}
	return status.Code(err)
}

// reason extracts the reason why no connection could be made; the client reports the end of a
// context instead.
func reason(ctx context.Context, method string, req, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, c, opts...)
	if status.Code(err) != codes.DeadlineExceeded {
		return err
	}
	_, why, ok := strings.Cut(status.Convert(err).Message(), "latest balancer error: ")
	if !ok {
		return err
	}
	if _, cause, ok := strings.Cut(why, "desc = "); ok {
		why = strings.Trim(cause, `"`)
	}
	return status.Error(codes.Internal, why)
}

// forbidden reports whether err is a server's answer that says that the user may not make the request.
func forbidden(err error) bool {
	switch code(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.FailedPrecondition:
		return true
	}
	return false
}

// definite reports whether err is a server's answer that says that the request had no effect.
func definite(err error) bool {
	switch code(err) {
	case codes.NotFound, codes.ResourceExhausted, codes.Unimplemented, codes.OutOfRange:
		return true
	}
	return forbidden(err)
}

// answered reports whether err is a server's answer, nil or not.
func answered(err error) bool { return err == nil || definite(err) }

// explain turns the client's error into this driver's: a refusal, or an unknown outcome.
func (b *Backend) explain(err error) error {
	answer := status.Convert(err).Message()
	if forbidden(err) {
		return &driver.RefusedError{
			Reason: "etcd refuses: check the user, the password, and the role's permission to read and write under " + b.opt.Path,
			Err:    errors.New(answer),
		}
	}
	switch code(err) {
	case codes.ResourceExhausted:
		if errors.Is(err, rpctypes.ErrTooManyRequests) {
			return &driver.RefusedError{RetryAfter: time.Second, Reason: "etcd has too many requests under way"}
		}
		return &driver.RefusedError{
			Reason: "etcd accepts no writes: compact and defragment it or raise its quota, then disarm the alarm",
			Err:    errors.New(answer),
		}
	case codes.Unimplemented:
		return &driver.RefusedError{Reason: "the server is no etcd of version 3", Err: errors.New(answer)}
	case codes.DataLoss:
		return errors.New("the members' data differ: replace those that the logs of etcd name, then disarm the alarm: " + answer)
	case codes.Internal:
		return errors.New(answer)
	case codes.DeadlineExceeded, codes.Canceled: // of gRPC, which the caller's context is not
		return errors.New("no member answered in time")
	}
	return err
}
