// A wall clock that is off by an offset, for one process: loaded by LD_PRELOAD before
// the C library, whose functions it stands in front of.
//
// The offset is read, at every call, from a file that is mapped into memory, so that
// whoever started the process can step its clock while it runs. CLOCK_REALTIME alone is
// off: a step of the wall clock moves no monotonic clock, here as in a kernel.
//
// The time comes from the system call itself and not from the function that this one
// hides. To look that one up (dlsym) allocates memory, and jemalloc, which Redis and
// Valkey use, asks for the time before it is ready to give any: that is what makes
// libfaketime crash there. Absolute waits (pthread_cond_timedwait and the like) are left
// alone; the servers have none that matters.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

_Static_assert(sizeof(long) == 8 && sizeof(time_t) == 8, "needs a 64-bit system");

// clock_file is what clock.go writes and reads.
struct clock_file {
	_Atomic int64_t offset; // ns
	_Atomic int64_t loaded; // the process that has mapped it
};

static struct clock_file *mapped;

__attribute__((constructor)) static void map_clock(void) {
	const char *path = getenv("REDLOCKTEST_CLOCK");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (fd < 0) return;
	void *at = mmap(NULL, sizeof *mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (at == MAP_FAILED) return;
	mapped = at;
	atomic_store(&mapped->loaded, (int64_t)getpid());
}

int clock_gettime(clockid_t id, struct timespec *ts) {
	if (syscall(SYS_clock_gettime, id, ts) != 0) return -1;
	if (mapped == NULL || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)) return 0;
	int64_t ns = ts->tv_sec * INT64_C(1000000000) + ts->tv_nsec + atomic_load(&mapped->offset);
	ts->tv_sec = ns / 1000000000;
	ts->tv_nsec = ns % 1000000000;
	return 0;
}

int gettimeofday(struct timeval *tv, void *tz) {
	struct timespec ts;
	(void)tz;
	if (clock_gettime(CLOCK_REALTIME, &ts) != 0) return -1;
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *to) {
	struct timespec ts;
	if (clock_gettime(CLOCK_REALTIME, &ts) != 0) return (time_t)-1;
	if (to != NULL) *to = ts.tv_sec;
	return ts.tv_sec;
}
