/* Fail the n-th write or sync call on files below a folder; see faults.py. Linux, with LD_PRELOAD.

   Kinds: 1 ENOSPC from the n-th call on; 2 EIO at the n-th call alone; 3 EIO from it on; 4 a write of half the bytes,
   once; 5 a write of half the bytes, then ENOSPC; 6 a write of half the bytes, then SIGKILL. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FULL = 1, ERROR_ONCE, ERROR, SHORT, TORN, KILL };

static char folder[PATH_MAX];
static long calls, failing_call;
static int kind;

/* Count calls below `path` from now on, and let call `n` (from 1; 0: none) fail. */
void faults_arm(const char *path, long n, int fault) {
    strncpy(folder, path, sizeof folder - 1);
    calls = 0, failing_call = n, kind = fault;
}

/* Return the number of calls since `faults_arm`, and count no more. */
long faults_disarm(void) {
    folder[0] = 0;
    return calls;
}

static int is_below(const char *path) { return !strncmp(path, folder, strlen(folder)); }

static int is_watched(int descriptor) {
    char link[64], path[PATH_MAX];
    if (!folder[0]) return 0;
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (length < 0) return 0;
    path[length] = 0;
    return is_below(path);
}

/* Return the fault of this call, 0 for none. Faults that last are ENOSPC or EIO after their first call. */
static int fault(void) {
    calls++;
    if (!failing_call || calls < failing_call) return 0;
    if (calls == failing_call) return kind;
    return kind == FULL || kind == TORN ? FULL : kind == ERROR ? ERROR : 0;
}

static int fail(int fault_kind) {
    if (fault_kind == KILL) kill(getpid(), SIGKILL);
    errno = fault_kind == ERROR || fault_kind == ERROR_ONCE ? EIO : ENOSPC;
    return -1;
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define WRITE(signature, name, descriptor, size, whole, half)                                                  \
    ssize_t signature {                                                                                        \
        REAL(name);                                                                                            \
        int kind = is_watched(descriptor) ? fault() : 0;                                                       \
        if (!kind) return whole;                                                                               \
        if (kind < SHORT || (size) < 2) return kind == SHORT ? whole : fail(kind);                             \
        ssize_t written = half;                                                                                \
        if (kind == KILL) fail(kind);                                                                          \
        return written;                                                                                        \
    }

#define CALL(signature, name, watched, call)                                                                   \
    int signature {                                                                                            \
        REAL(name);                                                                                            \
        int kind = folder[0] && watched ? fault() : 0;                                                         \
        return kind && kind != SHORT ? fail(kind) : call;                                                      \
    }

WRITE(write(int fd, const void *data, size_t size), write, fd, size, real(fd, data, size), real(fd, data, size / 2))
WRITE(pwrite(int fd, const void *data, size_t size, off_t at), pwrite, fd, size, real(fd, data, size, at),
      real(fd, data, size / 2, at))
WRITE(pwrite64(int fd, const void *data, size_t size, off64_t at), pwrite64, fd, size, real(fd, data, size, at),
      real(fd, data, size / 2, at))
CALL(fsync(int fd), fsync, is_watched(fd), real(fd))
CALL(fdatasync(int fd), fdatasync, is_watched(fd), real(fd))
CALL(ftruncate(int fd, off_t size), ftruncate, is_watched(fd), real(fd, size))
CALL(ftruncate64(int fd, off64_t size), ftruncate64, is_watched(fd), real(fd, size))
CALL(rename(const char *from, const char *to), rename, is_below(to), real(from, to))
CALL(renameat(int from_fd, const char *from, int to_fd, const char *to), renameat, is_below(to),
     real(from_fd, from, to_fd, to))
