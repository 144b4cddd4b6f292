/* Eight functions of equal cost, called in a shuffled order with known counts: the true share of each is
 * calls / all calls. It prints what it did as one JSON line.
 *
 *   mix [--calls N | --cpu SECONDS] [--depth D] [--frame-bytes B] [--seed S] [--bout-us U]
 *       [--children K] [--then-exec PROGRAM] [--time-each ROUNDS] [--only-on CPU] [--out FILE] [--report-fd FD]
 */
#define _GNU_SOURCE
#include "clock.h"

#include <alloca.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/wait.h>

#define KEEP __attribute__((noinline, noclone))
enum { FUNCTIONS = 8, ITERATIONS = 20000 };

/* Latency-bound: each multiplication waits for the one before. The constants differ, so that neither the
 * compiler nor the linker folds the functions into one; they are equally long. */
#define WORK(name, k)                                          \
    KEEP __attribute__((aligned(64))) uint64_t name(uint64_t x) \
    {                                                          \
        for (long i = 0; i < ITERATIONS; i++) {                \
            x = x * 6364136223846793005u + k;                  \
            __asm__ volatile("" : "+r"(x));                    \
        }                                                      \
        return x;                                              \
    }
WORK(work_a, 11) WORK(work_b, 13) WORK(work_c, 17) WORK(work_d, 19)
WORK(work_e, 23) WORK(work_f, 29) WORK(work_g, 31) WORK(work_h, 37)

typedef uint64_t (*work_fn)(uint64_t);
static const work_fn work[FUNCTIONS] = {work_a, work_b, work_c, work_d, work_e, work_f, work_g, work_h};
static const double ratio[FUNCTIONS] = {.40, .25, .15, .08, .05, .04, .02, .01};

static struct {
    long calls, depth, frame_bytes, bout_us, children, rounds;
    double cpu_s;
    uint64_t seed;
    int report_fd;
    const char *then_exec, *out;
} arg = {.depth = 5, .cpu_s = 1, .seed = 1, .report_fd = -1};

/* What was done, by this process or by a child that reports it through a pipe. */
struct done {
    uint64_t calls[FUNCTIONS];
    uint64_t work_ns;
};
static struct done done;
static volatile uint64_t sink;

static uint64_t next_random(void)
{
    uint64_t z = (arg.seed += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* An order of `units` entries with each function in its ratio, and at least once. */
static uint8_t *shuffled_order(long *units)
{
    long total = 0, count[FUNCTIONS];
    for (int f = 0; f < FUNCTIONS; f++) {
        count[f] = (long)(ratio[f] * (double)*units + .5);
        count[f] = count[f] ? count[f] : 1;
        total += count[f];
    }
    uint8_t *order = malloc((size_t)total);
    if (!order)
        die("malloc");
    long at = 0;
    for (int f = 0; f < FUNCTIONS; f++)
        for (long i = 0; i < count[f]; i++)
            order[at++] = (uint8_t)f;
    for (long i = total - 1; i > 0; i--) {
        long j = (long)(next_random() % (uint64_t)(i + 1));
        uint8_t swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    *units = total;
    return order;
}

KEEP static void run_calls(const uint8_t *order, long units, long calls_per_unit)
{
    uint64_t start = now_ns(CLOCK_THREAD_CPUTIME_ID), x = 1;
    for (long u = 0; u < units; u++) {
        for (long c = 0; c < calls_per_unit; c++)
            x = work[order[u]](x);
        done.calls[order[u]] += (uint64_t)calls_per_unit;
    }
    sink = x;
    done.work_ns += now_ns(CLOCK_THREAD_CPUTIME_ID) - start;
}

static void run(long calls, long calls_per_unit)
{
    long units = calls / calls_per_unit;
    uint8_t *order = shuffled_order(&units);
    run_calls(order, units, calls_per_unit);
    free(order);
}

/* Nanoseconds per call; the calls made to find out are counted like any other. */
static double ns_per_call(void)
{
    double best = 1e18;
    for (int i = 0; i < 5; i++) {
        uint64_t before = done.work_ns;
        run(100, 1);
        double ns = (double)(done.work_ns - before) / 100;
        best = ns < best ? ns : best;
    }
    return best;
}

static void report_done(int fd)
{
    if (write(fd, &done, sizeof done) != sizeof done)
        die("write");
}

static void exec_self(long calls, int fd)
{
    char n[32], d[32], s[32], r[32];
    snprintf(n, sizeof n, "%ld", calls);
    snprintf(d, sizeof d, "%ld", arg.depth);
    snprintf(s, sizeof s, "%lu", (unsigned long)next_random() >> 1);
    snprintf(r, sizeof r, "%d", fd);
    execl("/proc/self/exe", "mix", "--calls", n, "--depth", d, "--seed", s, "--report-fd", r, (char *)NULL);
    die("execl");
}

/* One child after another, of about 20, 40, 70 and 100 ms; each third one starts the program anew. */
static void run_children(long calls)
{
    static const double length[4] = {20, 40, 70, 100};
    for (long k = 0; k < arg.children; k++) {
        long mine = (long)((double)calls / (double)arg.children * length[k % 4] / 57.5 / 100) * 100;
        int fds[2];
        if (pipe(fds))
            die("pipe");
        next_random();
        pid_t child = fork();
        if (child < 0)
            die("fork");
        if (child == 0) {
            mine = mine < 100 ? 100 : mine;
            if (k % 3 == 2)
                exec_self(mine, fds[1]);
            memset(&done, 0, sizeof done);
            run(mine, 1);
            report_done(fds[1]);
            _exit(0);
        }
        close(fds[1]);
        struct done theirs;
        if (read(fds[0], &theirs, sizeof theirs) != sizeof theirs)
            die("a child's report");
        close(fds[0]);
        waitpid(child, NULL, 0);
        for (int f = 0; f < FUNCTIONS; f++)
            done.calls[f] += theirs.calls[f];
        done.work_ns += theirs.work_ns;
    }
}

/* What runs below the recursion. */
KEEP static void bottom(void)
{
    double ns = arg.calls && !arg.bout_us ? 0 : ns_per_call();
    long calls = arg.calls ? arg.calls : (long)(arg.cpu_s * 1e9 / ns / 100) * 100;
    if (arg.children)
        run_children(calls);
    else
        run(calls, arg.bout_us ? (long)((double)arg.bout_us * 1e3 / ns) + 1 : 1);
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

KEEP static long descend_wide(long depth, size_t bytes)
{
    volatile char *pad = alloca(bytes);
    pad[0] = pad[bytes - 1] = 1;
    if (depth == 0) {
        bottom();
        return pad[0];
    }
    long below = descend_wide(depth - 1, bytes);
    __asm__ volatile("" : "+r"(below));
    return below + pad[0];
}

/* Median ns per call of each function: rounds of ten calls each, in turn. */
static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void time_each(void)
{
    double *ns = malloc(sizeof *ns * (size_t)arg.rounds * FUNCTIONS);
    if (!ns)
        die("malloc");
    for (long r = 0; r < arg.rounds; r++)
        for (int f = 0; f < FUNCTIONS; f++) {
            uint64_t start = now_ns(CLOCK_THREAD_CPUTIME_ID);
            for (int i = 0; i < 10; i++)
                sink = work[f](sink);
            ns[f * arg.rounds + r] = (double)(now_ns(CLOCK_THREAD_CPUTIME_ID) - start) / 10;
        }
    printf("{\"median_ns_per_call\":[");
    for (int f = 0; f < FUNCTIONS; f++) {
        qsort(ns + f * arg.rounds, (size_t)arg.rounds, sizeof *ns, by_value);
        printf("%s%.1f", f ? "," : "", ns[f * arg.rounds + arg.rounds / 2]);
    }
    printf("]}\n");
    free(ns);
}

static void print_truth(uint64_t started)
{
    FILE *to = arg.out ? fopen(arg.out, "w") : stdout;
    if (!to)
        die(arg.out);
    fprintf(to, "{\"calls\":{");
    for (int f = 0; f < FUNCTIONS; f++)
        fprintf(to, "%s\"work_%c\":%lu", f ? "," : "", 'a' + f, (unsigned long)done.calls[f]);
    fprintf(to, "},\"work_cpu_s\":%.9f,\"cpu_s\":%.6f,\"wall_s\":%.6f,\"pid\":%d}\n", 1e-9 * (double)done.work_ns,
            rusage_s(RUSAGE_SELF) + rusage_s(RUSAGE_CHILDREN), 1e-9 * (double)(now_ns(CLOCK_MONOTONIC) - started),
            (int)getpid());
    if (fflush(to))
        die("truth");
}

static void stay_on(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one))
        die("sched_setaffinity");
}

static void parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        const char *key = argv[i], *value = argv[i + 1];
        if (!value) {
            fprintf(stderr, "mix: %s needs a value\n", key);
            exit(2);
        }
        if (!strcmp(key, "--calls")) arg.calls = atol(value);
        else if (!strcmp(key, "--cpu")) arg.cpu_s = atof(value);
        else if (!strcmp(key, "--depth")) arg.depth = atol(value);
        else if (!strcmp(key, "--frame-bytes")) arg.frame_bytes = atol(value);
        else if (!strcmp(key, "--seed")) arg.seed = strtoul(value, NULL, 10);
        else if (!strcmp(key, "--bout-us")) arg.bout_us = atol(value);
        else if (!strcmp(key, "--children")) arg.children = atol(value);
        else if (!strcmp(key, "--then-exec")) arg.then_exec = value;
        else if (!strcmp(key, "--time-each")) arg.rounds = atol(value);
        else if (!strcmp(key, "--only-on")) stay_on(atoi(value));
        else if (!strcmp(key, "--out")) arg.out = value;
        else if (!strcmp(key, "--report-fd")) arg.report_fd = atoi(value);
        else {
            fprintf(stderr, "mix: unknown argument %s\n", key);
            exit(2);
        }
    }
}

int main(int argc, char **argv)
{
    uint64_t started = now_ns(CLOCK_MONOTONIC);
    parse(argc, argv);
    if (arg.rounds) {
        time_each();
        return 0;
    }
    if (arg.frame_bytes)
        descend_wide(arg.depth, (size_t)arg.frame_bytes);
    else
        descend(arg.depth);
    if (arg.report_fd >= 0)
        report_done(arg.report_fd);
    else
        print_truth(started);
    if (arg.then_exec) {
        execl(arg.then_exec, arg.then_exec, "--cpu", "1", "--out", "/dev/null", (char *)NULL);
        die(arg.then_exec);
    }
    return 0;
}
