/* Fixed work at the bottom of a stack of known depth, for the stopwatch: either each multiplication waits for the one
 * before, or each read from memory does. It prints what it took as one JSON line.
 *
 *   spin --iterations N [--kind compute|memory] [--depth D] [--on-cpu C] [--out FILE]
 */
#define _GNU_SOURCE
#include "clock.h"

#include <sched.h>
#include <string.h>

#define KEEP __attribute__((noinline, noclone))
enum { LINES = 1 << 18 }; /* 16 MiB in lines of 64 bytes: more than the caches of a core hold */

static struct {
    long iterations, depth, on_cpu;
    const char *kind, *out;
} arg = {.depth = 5, .on_cpu = -1, .kind = "compute"};

struct line {
    uint32_t next;
    char rest[60];
};
static struct line *lines;
static volatile uint64_t sink;
static uint64_t work_ns;

/* One circle through all lines in random order (Sattolo's shuffle). */
static void make_circle(void)
{
    uint64_t seed = 1;
    lines = malloc(LINES * sizeof *lines);
    if (!lines)
        die("malloc");
    for (uint32_t i = 0; i < LINES; i++)
        lines[i].next = i;
    for (uint32_t i = LINES - 1; i > 0; i--) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint32_t j = (uint32_t)((seed >> 33) % i), swap = lines[i].next;
        lines[i].next = lines[j].next;
        lines[j].next = swap;
    }
}

KEEP static uint64_t compute(long iterations)
{
    uint64_t x = 1;
    for (long i = 0; i < iterations; i++) {
        x = x * 6364136223846793005u + 11;
        __asm__ volatile("" : "+r"(x));
    }
    return x;
}

KEEP static uint64_t read_memory(long iterations)
{
    uint32_t at = 0;
    for (long i = 0; i < iterations; i++)
        at = lines[at].next;
    return at;
}

KEEP static void bottom(void)
{
    uint64_t before = now_ns(CLOCK_THREAD_CPUTIME_ID);
    sink = lines ? read_memory(arg.iterations) : compute(arg.iterations);
    work_ns = now_ns(CLOCK_THREAD_CPUTIME_ID) - before;
}

KEEP static long descend(long depth)
{
    if (depth == 0) {
        bottom();
        return 0;
    }
    long below = descend(depth - 1);
    __asm__ volatile("" : "+r"(below)); /* neither a tail call nor a loop */
    return below + 1;
}

static void stay_on(long cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one))
        die("sched_setaffinity");
}

static void parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        const char *key = argv[i], *value = argv[i + 1];
        if (!value) {
            fprintf(stderr, "spin: %s needs a value\n", key);
            exit(2);
        }
        if (!strcmp(key, "--iterations")) arg.iterations = atol(value);
        else if (!strcmp(key, "--kind")) arg.kind = value;
        else if (!strcmp(key, "--depth")) arg.depth = atol(value);
        else if (!strcmp(key, "--on-cpu")) arg.on_cpu = atol(value);
        else if (!strcmp(key, "--out")) arg.out = value;
        else {
            fprintf(stderr, "spin: unknown argument %s\n", key);
            exit(2);
        }
    }
}

int main(int argc, char **argv)
{
    uint64_t started = now_ns(CLOCK_MONOTONIC);
    parse(argc, argv);
    if (arg.on_cpu >= 0)
        stay_on(arg.on_cpu);
    if (!strcmp(arg.kind, "memory"))
        make_circle();
    descend(arg.depth);
    FILE *to = arg.out ? fopen(arg.out, "w") : stdout;
    if (!to)
        die(arg.out);
    fprintf(to, "{\"calls\":{},\"work_cpu_s\":%.9f,\"cpu_s\":%.6f,\"wall_s\":%.6f}\n", 1e-9 * (double)work_ns,
            rusage_s(RUSAGE_SELF), 1e-9 * (double)(now_ns(CLOCK_MONOTONIC) - started));
    return fclose(to) ? 3 : 0;
}
