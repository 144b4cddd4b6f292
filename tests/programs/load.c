/* Load of one kind, as much as a file says at the moment (0 to 100), polite to whoever else works here.
 *
 *   load KIND LEVEL_FILE        KIND: busy threads mappings churn
 *
 * busy: a share of a CPU, three fifths of it in `load_major`, the rest in `load_minor`.   threads: the same by 32 threads.
 * mappings: maps and unmaps code of this program, ten times the level in a second.   churn: starts processes of 2 ms, three
 * times the level in a second, in five bursts.
 */
#define _GNU_SOURCE
#include "clock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define KEEP __attribute__((noinline, noclone))
enum { THREADS = 32, SLOT_NS = 50000000, BURSTS = 5, AT_ONCE = 8 };
static const uint64_t SECOND_NS = 1000000000;
static int level_file;

#define WORK(name, k)                                      \
    KEEP __attribute__((aligned(64))) uint64_t name(uint64_t x) \
    {                                                      \
        for (long i = 0; i < 20000; i++) {                 \
            x = x * 6364136223846793005u + k;              \
            __asm__ volatile("" : "+r"(x));                \
        }                                                  \
        return x;                                          \
    }
WORK(load_major, 11) WORK(load_minor, 13)

static long level(void)
{
    char text[16] = {0};
    return pread(level_file, text, sizeof text - 1, 0) > 0 ? atol(text) : 0;
}

static void rest(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS)};
    while (nanosleep(&t, &t) && errno == EINTR) { }
}

/* Works for a share of a slot (by the thread's own CPU time), then rests for what is left of it. */
static void *work(void *shared_by)
{
    for (uint64_t x = 1;;) {
        uint64_t cpu_ns = SLOT_NS / 100 * (uint64_t)level() / (uint64_t)(uintptr_t)shared_by;
        uint64_t from_ns = now_ns(CLOCK_MONOTONIC), done_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) + cpu_ns;
        while (now_ns(CLOCK_THREAD_CPUTIME_ID) < done_ns)
            x = load_minor(load_minor(load_major(load_major(load_major(x)))));
        uint64_t took_ns = now_ns(CLOCK_MONOTONIC) - from_ns;
        rest(took_ns < SLOT_NS ? SLOT_NS - took_ns : SLOT_NS / 50);
        __asm__ volatile("" : "+r"(x));
    }
    return NULL;
}

static void threads(void)
{
    pthread_t thread;
    for (int i = 1; i < THREADS; i++)
        if (pthread_create(&thread, NULL, work, (void *)(uintptr_t)THREADS))
            die("pthread_create");
    work((void *)(uintptr_t)THREADS);
}

static void mappings(void)
{
    int code = open("/proc/self/exe", O_RDONLY);
    if (code < 0)
        die("/proc/self/exe");
    for (;;) {
        for (long i = level() * 10 * SLOT_NS / (long)SECOND_NS; i > 0; i--) {
            void *at = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, code, 0);
            if (at == MAP_FAILED)
                die("mmap");
            munmap(at, 4096);
        }
        rest(SLOT_NS);
    }
}

static void churn(void)
{
    for (;;) {
        long running = 0;
        for (long i = level() * 3 / BURSTS; i > 0; i--) {
            if (running == AT_ONCE && wait(NULL) > 0)
                running--;
            pid_t child = fork();
            if (child == 0) {
                execl("/proc/self/exe", "load", "short", "/dev/null", (char *)NULL);
                _exit(3);
            }
            running += child > 0;
        }
        while (wait(NULL) > 0) { }
        rest(SECOND_NS / BURSTS);
    }
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    const char *kind = argv[1];
    level_file = open(argv[2], O_RDONLY);
    if (level_file < 0)
        die(argv[2]);
    if (!strcmp(kind, "short")) {
        for (uint64_t x = 1; now_ns(CLOCK_PROCESS_CPUTIME_ID) < 2000000; )
            x = load_major(x);
        return 0;
    }
    errno = 0;
    if (nice(10) == -1 && errno)
        die("nice");
    if (!strcmp(kind, "busy"))
        work((void *)(uintptr_t)1);
    else if (!strcmp(kind, "threads"))
        threads();
    else if (!strcmp(kind, "mappings"))
        mappings();
    else if (!strcmp(kind, "churn"))
        churn();
    return 2;
}
