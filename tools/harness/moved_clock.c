/* Preloaded into a server: its clock is off by the number of seconds in the file $MOVED_CLOCK_OFFSET, a
 * 64-bit integer that may change at any time. The clocks that only count on are left alone. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t none;
static volatile int64_t *offset = &none;

__attribute__((constructor)) static void open_offset(void) {
  const char *path = getenv("MOVED_CLOCK_OFFSET");
  int file = path ? open(path, O_RDONLY) : -1;
  if (file < 0)
    return;
  void *shared = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
  if (shared != MAP_FAILED)
    offset = shared;
  close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int status = syscall(SYS_clock_gettime, clock, now);
  if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += *offset;
  return status;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *where) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (where)
    *where = exact.tv_sec;
  return exact.tv_sec;
}
