#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Fails what opens or looks at a path with FAULTY_PATH in it. */
static int fails(const char *path) {
  const char *part = getenv("FAULTY_PATH");
  if (!path || !part || !*part || !strstr(path, part)) return 0;
  errno = atoi(getenv("FAULTY_ERRNO"));
  return 1;
}

#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))
#define OPEN(name)                                             \
  int name(const char *path, int flags, ...) {                 \
    va_list more;                                              \
    va_start(more, flags);                                     \
    mode_t mode = va_arg(more, mode_t);                        \
    va_end(more);                                              \
    return fails(path) ? -1 : REAL(name)(path, flags, mode);   \
  }
#define OPENAT(name)                                                  \
  int name(int folder, const char *path, int flags, ...) {            \
    va_list more;                                                     \
    va_start(more, flags);                                            \
    mode_t mode = va_arg(more, mode_t);                               \
    va_end(more);                                                     \
    return fails(path) ? -1 : REAL(name)(folder, path, flags, mode);  \
  }
#define FOPEN(name)                                            \
  FILE *name(const char *path, const char *mode) {             \
    return fails(path) ? NULL : REAL(name)(path, mode);        \
  }
#define STAT(name, kind)                                       \
  int name(const char *path, struct kind *found) {             \
    return fails(path) ? -1 : REAL(name)(path, found);         \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)
int fstatat(int folder, const char *path, struct stat *found, int flags) {
  return fails(path) ? -1 : REAL(fstatat)(folder, path, found, flags);
}
int access(const char *path, int mode) {
  return fails(path) ? -1 : REAL(access)(path, mode);
}
DIR *opendir(const char *path) {
  return fails(path) ? NULL : REAL(opendir)(path);
}
