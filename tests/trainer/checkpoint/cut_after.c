/* Kills a process after its n-th change of the file system; preloaded.

   What counts: every call by which a file or directory below a given one is
   made, written, flushed, renamed or deleted. Each call is written to a log.
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char below[4096];
static long count, last;
static int record = -1;

/* Starts counting below a directory; `after` 0 kills never. */
void cut_after(long after, const char *directory, const char *log) {
  strncpy(below, directory, sizeof below - 1);
  count = 0;
  last = after;
  record = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
}

static void done(const char *what, const char *path) {
  if (!below[0] || strncmp(path, below, strlen(below))) return;
  count++;
  dprintf(record, "%s %s\n", what, path);
  if (count == last) kill(getpid(), SIGKILL);
}

static void done_fd(const char *what, int fd) {
  char link[64], path[4096];
  if (!below[0] || fd == record) return;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return;
  path[size] = 0;
  done(what, path);
}

#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define OPEN_STREAM(name) \
  FILE *name(const char *path, const char *mode) { \
    REAL(FILE *, name, const char *, const char *); \
    FILE *file = real(path, mode); \
    if (file && mode[0] != 'r') done("open", path); \
    return file; \
  }
OPEN_STREAM(fopen)
OPEN_STREAM(fopen64)

#define ON_PATH(name) \
  int name(const char *path) { \
    REAL(int, name, const char *); \
    int result = real(path); \
    done(#name, path); \
    return result; \
  }
ON_PATH(unlink)
ON_PATH(rmdir)
ON_PATH(remove)

int unlinkat(int directory, const char *name, int flags) {
  REAL(int, unlinkat, int, const char *, int);
  char link[64], path[4096];
  ssize_t size = 0;
  if (name[0] != '/') {
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    size = readlink(link, path, sizeof path - 1);
    if (size < 0) size = 0;
    else path[size++] = '/';
  }
  snprintf(path + size, sizeof path - size, "%s", name);
  int result = real(directory, name, flags);
  done("unlinkat", path);
  return result;
}

int mkdir(const char *path, mode_t mode) {
  REAL(int, mkdir, const char *, mode_t);
  int result = real(path, mode);
  done("mkdir", path);
  return result;
}

int rename(const char *from, const char *to) {
  REAL(int, rename, const char *, const char *);
  int result = real(from, to);
  done("rename", to);
  return result;
}

int fsync(int fd) {
  REAL(int, fsync, int);
  int result = real(fd);
  done_fd("fsync", fd);
  return result;
}

ssize_t write(int fd, const void *data, size_t size) {
  REAL(ssize_t, write, int, const void *, size_t);
  ssize_t result = real(fd, data, size);
  done_fd("write", fd);
  return result;
}

size_t fwrite(const void *data, size_t size, size_t n, FILE *file) {
  REAL(size_t, fwrite, const void *, size_t, size_t, FILE *);
  size_t result = real(data, size, n, file);
  done_fd("write", fileno(file));
  return result;
}

int fflush(FILE *file) {
  REAL(int, fflush, FILE *);
  int result = real(file);
  if (file) done_fd("flush", fileno(file));
  return result;
}

int fclose(FILE *file) {
  REAL(int, fclose, FILE *);
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fileno(file));
  ssize_t size = readlink(link, path, sizeof path - 1);
  int result = real(file);
  if (size > 0) {
    path[size] = 0;
    done("close", path);
  }
  return result;
}
