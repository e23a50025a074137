package redlock

import (
	"math/bits"
	"slices"
	"time"
)

// mutation is a set of parts of the algorithm to take out, one bit each. With it tests show
// that they notice a missing part. Each mutant wraps the machine of bid.go, so the shipped code
// has no switch for it.
type mutation uint32

const (
	noWriteBack    mutation = 1 << iota // different tokens are not raised to the largest
	ackUnowned                          // a raise on a node that lost the lock counts
	countLate                           // during the raise every node that granted counts, whatever its token
	extendOwn                           // a renewal takes lost nodes again, and counts them
	oneAttempt                          // all rounds of a request have the same owner
	releaseEarly                        // a release does not wait for the acquire before it
	noValidity                          // a grant that took too long is returned
	noClockCheck                        // clocks need not agree, and nothing waits for them: no rule of terms.go applies
	renewFromReply                      // Expires of a renewal counts from the last answer
	joinEarly                           // a bid that has the first node joins the rest with its token, before the grant
	adoptAbove                          // a straggler above the token counts
	keepLosers                          // a failed bid releases nothing
	minority                            // one node less than a majority is enough
	backLease                           // a lease gives its votes back
)

// machine is a step function: the one of bid.go, or a mutant.
type machine func(*bid, *event) actions

// mutate lets a backend run a mutant.
func mutate(b *Backend, m mutation) { b.step = mutant(m) }

// mutant returns the machine without these parts.
func mutant(m mutation) machine {
	step := machine((*bid).step)
	for part, mutate := range map[mutation]func(machine) machine{
		noWriteBack: func(next machine) machine {
			return func(b *bid, e *event) actions {
				if e.kind == looks && (b.stage == electing || b.stage == lingering) {
					agreed := b.agreeing(b.in(owned))
					if token, same := b.alike(agreed); !same && agreed.len() >= b.q && (b.certain() || e.now >= b.due) {
						for i := range b.parts {
							if agreed.has(i) {
								b.parts[i].fence = token
							}
						}
					}
				}
				return next(b, e)
			}
		},
		ackUnowned: func(next machine) machine {
			return func(b *bid, e *event) actions {
				if e.kind == answered && b.parts[e.node].call == raise && e.answer == gone {
					e.answer, e.clock = granted, b.parts[e.node].clock
				}
				return next(b, e)
			}
		},
		countLate: func(next machine) machine {
			return func(b *bid, e *event) actions {
				out := next(b, e)
				for i := range b.parts {
					if g := &b.parts[i]; b.stage == raising && g.state == owned {
						g.state = counted
					}
				}
				return out
			}
		},
		extendOwn: func(next machine) machine {
			return func(b *bid, e *event) actions {
				if e.kind == answered && b.joined.has(e.node) && b.parts[e.node].call == acquire && b.phase == holding {
					g := &b.parts[e.node]
					if e.answer == granted {
						g.call, g.state, g.fence, g.clock = idle, counted, e.fence, e.clock
						b.awaited.drop(e.node)
						b.acks.add(e.node)
						return actions{}
					}
				}
				out := next(b, e)
				for i := range b.parts {
					if out.calls[i] == join {
						out.calls[i], b.parts[i].call = acquire, acquire
						b.awaited.add(i)
					}
				}
				return out
			}
		},
		oneAttempt: func(next machine) machine {
			return func(b *bid, e *event) actions {
				out := next(b, e)
				b.attempt = min(b.attempt, 1)
				return out
			}
		},
		releaseEarly: func(next machine) machine {
			return func(b *bid, e *event) actions {
				out := next(b, e)
				if g := &b.parts[e.node]; e.kind == answered && e.answer == granted && b.phase == over && out.calls[e.node] == release && g.fence == e.fence && e.fence != 0 {
					g.call, g.state, out.calls[e.node] = idle, free, idle
				}
				return out
			}
		},
		noValidity: func(next machine) machine {
			return func(b *bid, e *event) actions {
				const longer = time.Hour
				if e.kind != looks || b.ttl == 0 || b.stage == quieting {
					return next(b, e)
				}
				b.ttl += longer
				out := next(b, e)
				b.ttl -= longer
				switch out.verdict {
				case won:
					b.expires, _ = b.judge(b.in(counted), b.start)
				case extended:
					b.expires, _ = b.judge(b.acked(), b.start)
				}
				return out
			}
		},
		noClockCheck: func(next machine) machine {
			return func(b *bid, e *event) actions {
				if e.kind == answered && e.clock.known { // all clocks equal the client's
					e.clock.earliest, e.clock.latest = time.Duration(e.clock.sent), time.Duration(e.clock.sent)
					e.clock.excuse = time.Hour
				}
				return next(b, e)
			}
		},
		renewFromReply: func(next machine) machine {
			return func(b *bid, e *event) actions {
				out := next(b, e)
				if out.verdict == extended {
					b.expires = e.now.Add(b.expires.Sub(b.start))
				}
				return out
			}
		},
		joinEarly: func(next machine) machine {
			return func(b *bid, e *event) actions {
				out := next(b, e)
				got := b.in(owned)
				for i := range b.parts {
					if g := &b.parts[i]; out.calls[i] == acquire && b.stage == electing && got != 0 {
						b.fence = b.parts[bits.TrailingZeros16(uint16(got))].fence
						g.call, out.calls[i] = join, join
					}
				}
				return out
			}
		},
		adoptAbove: func(next machine) machine {
			return func(b *bid, e *event) actions {
				out := next(b, e)
				for i := range b.parts {
					if g := &b.parts[i]; out.calls[i] == release && b.phase == holding && g.state == leaving && g.fence > b.fence {
						g.call, g.state, out.calls[i] = idle, counted, idle
					}
				}
				return out
			}
		},
		keepLosers: func(next machine) machine {
			return func(b *bid, e *event) actions {
				out := next(b, e)
				for i := range b.parts {
					if out.verdict > interrupted && out.calls[i] == release {
						b.parts[i].call, b.parts[i].state, out.calls[i] = idle, free, idle
					}
				}
				return out
			}
		},
		backLease: func(next machine) machine {
			return func(b *bid, e *event) actions {
				out := next(b, e)
				for i := range b.parts {
					if out.calls[i] == release {
						out.back.add(i)
					}
				}
				return out
			}
		},
		minority: func(next machine) machine {
			return func(b *bid, e *event) actions {
				q := b.q
				b.q--
				out := next(b, e)
				b.q = q
				return out
			}
		},
	} {
		if m&part != 0 {
			step = mutate(step)
		}
	}
	return step
}

// stall makes f run between a bid's last answer and its last step, the look at the clock.
func stall(b *Backend, f func()) {
	next := b.step
	if next == nil {
		next = (*bid).step
	}
	b.step = func(x *bid, e *event) actions {
		try, what := *x, *e
		try.parts = slices.Clone(x.parts)
		if next(&try, &what).verdict == won {
			f()
			e.now = b.clock.Fresh()
		}
		return next(x, e)
	}
}
