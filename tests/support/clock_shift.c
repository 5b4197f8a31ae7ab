/* A wall clock that jumps under a process while it runs: preloaded, it adds the seconds that the
 * file CLOCK_SHIFT holds (a 64-bit integer) to whatever tells the time of day. The monotonic clock
 * stays as it is. A wait until a time of day sees the jump, as it would in the kernel: it ends early
 * when the clock jumps on, and late when it jumps back. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define SLICE_NS 20000000L
#define LEAST_TIME_OF_DAY 500000000L /* less is of the monotonic clock */

static const volatile int64_t none = 0;
static const volatile int64_t *shift = &none;
static int (*true_gettime)(clockid_t, struct timespec *);
static int (*true_cond)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*true_cnd)(cnd_t *, mtx_t *, const struct timespec *);
static int (*true_sem)(sem_t *, const struct timespec *);

static void *of(const char *name, const char *version) {
    void *found = dlvsym(RTLD_NEXT, name, version);
    return found ? found : dlsym(RTLD_NEXT, name);
}

__attribute__((constructor)) static void begin(void) {
    if (true_gettime) return;
    true_cond = of("pthread_cond_timedwait", "GLIBC_2.3.2");
    true_cnd = dlsym(RTLD_NEXT, "cnd_timedwait");
    true_sem = dlsym(RTLD_NEXT, "sem_timedwait");
    const char *path = getenv("CLOCK_SHIFT");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *mapped = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED) shift = mapped;
        close(file);
    }
    true_gettime = dlsym(RTLD_NEXT, "clock_gettime");
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    begin();
    int failed = true_gettime(clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += *shift;
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *at, int base) {
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, at) ? base : 0;
}

/* The end of the next slice by the true clock; 0 when the time has come. */
static int slice(const struct timespec *until, struct timespec *end) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (now.tv_sec > until->tv_sec ||
        (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec)) return 0;
    int64_t left = SLICE_NS;
    if (until->tv_sec - now.tv_sec <= 1) {
        left = (until->tv_sec - now.tv_sec) * 1000000000L + until->tv_nsec - now.tv_nsec;
        if (left > SLICE_NS) left = SLICE_NS;
    }
    true_gettime(CLOCK_REALTIME, end);
    end->tv_nsec += left;
    if (end->tv_nsec >= 1000000000L) {
        end->tv_sec++;
        end->tv_nsec -= 1000000000L;
    }
    return 1;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    begin();
    if (until->tv_sec < LEAST_TIME_OF_DAY) return true_cond(condition, mutex, until);
    struct timespec end;
    while (slice(until, &end)) {
        int result = true_cond(condition, mutex, &end);
        if (result != ETIMEDOUT) return result;
    }
    return ETIMEDOUT;
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex,
                  const struct timespec *restrict until) {
    begin();
    struct timespec end;
    while (slice(until, &end)) {
        int result = true_cnd(condition, mutex, &end);
        if (result != thrd_timedout) return result;
    }
    return thrd_timedout;
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    begin();
    struct timespec end;
    while (slice(until, &end)) {
        if (!true_sem(semaphore, &end)) return 0;
        if (errno != ETIMEDOUT) return -1;
    }
    if (!sem_trywait(semaphore)) return 0;
    errno = ETIMEDOUT;
    return -1;
}
