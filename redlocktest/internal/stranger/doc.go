// Package stranger tests the suite with a driver that was written from its documentation alone, over
// the bare commands of one Redis, and with mistakes that such a driver may have.
package stranger
