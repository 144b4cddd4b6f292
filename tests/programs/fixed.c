/* Fixed work, with the CPU time that each stretch of it took: the stopwatch that profilers are held to.
 *
 *   fixed plain|step|storm|pair|threads UNITS [--on CPU] [--out FILE]
 *
 * plain    20 frames deep
 * step     5 frames deep, and from half of the work on 300 deep
 * storm    computing and switching between two threads in turns, half a second each
 * pair     nothing but switching between two threads
 * threads  200 threads, 20 frames deep each
 *
 * A unit is about 20 us: a call of a function, or eight round trips through two pipes.
 */
#define _GNU_SOURCE
#include "clock.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#define KEEP __attribute__((noinline, noclone))
enum { ITERATIONS = 20000, MARK_UNITS = 2000, STORM_UNITS = 25000, ROUND_TRIPS = 8, THREADS = 200 };
enum { SHALLOW = 5, USUAL = 20, DEEP = 300, FRAME_BYTES = 64 };

#define WORK(name, k)                                          \
    KEEP __attribute__((aligned(64))) uint64_t name(uint64_t x) \
    {                                                          \
        for (long i = 0; i < ITERATIONS; i++) {                \
            x = x * 6364136223846793005u + k;                  \
            __asm__ volatile("" : "+r"(x));                    \
        }                                                      \
        return x;                                              \
    }
WORK(work_a, 11) WORK(work_b, 13) WORK(work_c, 17) WORK(work_d, 19) WORK(work_e, 23)

typedef uint64_t (*work_fn)(uint64_t);
/* Shares of .4, .25, .15, .15 and .05. */
static const work_fn turn[20] = {work_a, work_b, work_a, work_c, work_a, work_b, work_d, work_a, work_b, work_a,
                                 work_c, work_d, work_a, work_b, work_a, work_c, work_d, work_a, work_b, work_e};

static long all_units;
static atomic_long done;
/* When each MARK_UNITS of work were done: the monotonic clock, and CPU time of all threads. */
static struct mark {
    uint64_t wall_ns, cpu_ns;
} *marks;
static volatile uint64_t sink;

static void mark(long n)
{
    marks[n] = (struct mark){now_ns(CLOCK_MONOTONIC), now_ns(CLOCK_PROCESS_CPUTIME_ID)};
}

static void count_unit(void)
{
    long units = atomic_fetch_add_explicit(&done, 1, memory_order_relaxed) + 1;
    if (units % MARK_UNITS == 0)
        mark(units / MARK_UNITS);
}

KEEP static void compute(long units)
{
    uint64_t x = 1;
    for (long i = 0; i < units; i++) {
        x = turn[i % 20](x);
        count_unit();
    }
    sink = x;
}

KEEP static long descend(long depth, void (*bottom)(long), long units)
{
    char pad[FRAME_BYTES];
    __asm__ volatile("" : : "r"(pad) : "memory");
    if (depth == 0) {
        bottom(units);
        return 0;
    }
    long below = descend(depth - 1, bottom, units);
    __asm__ volatile("" : "+r"(below)); /* neither a tail call nor a loop */
    return below + 1;
}

static int there[2], back[2];

static void *echo(void *unused)
{
    char byte;
    while (read(there[0], &byte, 1) == 1)
        if (write(back[1], &byte, 1) != 1)
            die("pipe");
    return unused;
}

KEEP static void exchange(long units)
{
    char byte = 'x';
    for (long i = 0; i < units; i++) {
        for (int trip = 0; trip < ROUND_TRIPS; trip++)
            if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
                die("pipe");
        count_unit();
    }
}

static void with_echo(void (*run)(long), long units)
{
    pthread_t thread;
    if (pipe(there) || pipe(back) || pthread_create(&thread, NULL, echo, NULL))
        die("pipe or thread");
    run(units);
    close(there[1]);
    pthread_join(thread, NULL);
}

static void plain(long units)
{
    descend(USUAL, compute, units);
}

static void step(long units)
{
    descend(SHALLOW, compute, units / 2);
    descend(DEEP, compute, units - units / 2);
}

static void in_turns(long units)
{
    void (*now)(long) = compute, (*next)(long) = exchange;
    while (units > 0) {
        long some = units < STORM_UNITS ? units : STORM_UNITS;
        descend(SHALLOW, now, some);
        units -= some;
        void (*swap)(long) = now;
        now = next;
        next = swap;
    }
}

static void storm(long units)
{
    with_echo(in_turns, units);
}

static void pair(long units)
{
    with_echo(exchange, units);
}

static void *share_of_work(void *units)
{
    descend(USUAL, compute, *(long *)units);
    return NULL;
}

static void threads(long units)
{
    static pthread_t thread[THREADS];
    static long each[THREADS];
    for (int i = 0; i < THREADS; i++) {
        each[i] = units / THREADS + (i < units % THREADS);
        if (pthread_create(&thread[i], NULL, share_of_work, &each[i]))
            die("pthread_create");
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
}

static const struct {
    const char *name;
    void (*run)(long);
} kinds[] = {{"plain", plain}, {"step", step}, {"storm", storm}, {"pair", pair}, {"threads", threads}};

static void stay_on(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        die("sched_setaffinity");
}

static void print(const char *out)
{
    FILE *to = out ? fopen(out, "w") : stdout;
    if (!to)
        die(out);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    fprintf(to, "{\"cpu_s\":%.9f,\"switches\":%ld,\"marks\":[", 1e-9 * (double)now_ns(CLOCK_PROCESS_CPUTIME_ID),
            used.ru_nvcsw + used.ru_nivcsw);
    for (long n = 0; n <= all_units / MARK_UNITS; n++)
        fprintf(to, "%s[%.9f,%.9f]", n ? "," : "", 1e-9 * (double)marks[n].wall_ns, 1e-9 * (double)marks[n].cpu_ns);
    fprintf(to, "]}\n");
    if (fflush(to))
        die("the figures");
}

static void usage(void)
{
    fprintf(stderr, "fixed plain|step|storm|pair|threads UNITS [--on CPU] [--out FILE]\n");
    exit(2);
}

int main(int argc, char **argv)
{
    const char *out = NULL;
    if (argc < 3 || argc % 2 == 0)
        usage();
    for (int i = 3; i < argc; i += 2) {
        if (!strcmp(argv[i], "--on")) stay_on(atoi(argv[i + 1]));
        else if (!strcmp(argv[i], "--out")) out = argv[i + 1];
        else usage();
    }
    all_units = atol(argv[2]) / MARK_UNITS * MARK_UNITS;
    marks = calloc((size_t)(all_units / MARK_UNITS) + 1, sizeof *marks);
    if (!marks || all_units <= 0)
        usage();
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        if (!strcmp(argv[1], kinds[k].name)) {
            mark(0);
            kinds[k].run(all_units);
            print(out);
            return 0;
        }
    usage();
}
