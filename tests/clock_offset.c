/* Adds an offset to the wall clock of a program, for tests that set the clock (LD_PRELOAD).
 *
 * OUTRIGGER_CLOCK_OFFSET names a file of eight bytes: the offset in seconds as an int64_t in the
 * byte order of the host. The test changes the bytes in place. The monotonic clocks do not change.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *offset;

__attribute__((constructor)) static void map_offset(void) {
  const char *path = getenv("OUTRIGGER_CLOCK_OFFSET");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) {
    return;
  }
  void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (page != MAP_FAILED) {
    offset = page;
  }
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  int result = (int)syscall(SYS_clock_gettime, clock, time);
  if (result == 0 && clock == CLOCK_REALTIME && offset != NULL) {
    time->tv_sec += *offset;
  }
  return result;
}
