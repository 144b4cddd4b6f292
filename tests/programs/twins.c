/* Two processes that take turns at the same work on one CPU, some milliseconds each: one to be sampled, and its twin. What
 * else happens to the machine happens to both, so that their difference is what sampling costs.
 *
 *   twins compute|memory|step|storm|late|pair|threads|steps --iterations N [--depth D] [--step-at TURN] [--on CPU]
 *         [--control FILE] --out FILE
 *
 * compute  each multiplication waits for the one before
 * memory   each read from memory waits for the one before
 * step     computing, DEPTH frames deep, and from a turn on 300 deep
 * storm    computing and switching between two threads, a hundred turns each
 * late     computing, and from a turn on what storm does
 * pair     nothing but switching between two threads
 * threads  computing, each turn in another of 200 threads
 * steps    computing in eight functions, as the control file says at the moment: "DUTY DEPTH THREADS", the share of the time
 *          that both together are busy (%; 0 for a pause), the frames above each turn, and the threads that take turns
 *
 * It prints the process to be sampled, goes on until its input ends, and writes one JSON line: what each turn took (ns of CPU
 * time) in the twin and in the process, and when it was over (ns, monotonic clock).
 */
#define _GNU_SOURCE
#include "clock.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define KEEP __attribute__((noinline, noclone))
enum { LINES = 1 << 18 }; /* 16 MiB in lines of 64 bytes: more than the caches of a core hold */
enum { THREADS = 200, STORM_TURNS = 100, ITERATIONS_PER_TRIP = 4000, DEEP = 300, MAX_TURNS = 1 << 20 };

static struct {
    const char *kind, *out, *control;
    long iterations, depth, step_at, on;
} arg = {.depth = 20, .on = -1};

static struct turn {
    uint64_t twin_ns, process_ns, over_ns;
} *turns;
static struct shared {
    volatile long turns;
    volatile int over;
    volatile long depth, threads; /* of the turn that both are about to take */
} *shared;

static int is_twin, to_process[2], to_twin[2];
static volatile uint64_t sink;

struct line {
    uint32_t next;
    char rest[60];
};
static struct line *lines;

/* One circle through all lines in random order (Sattolo's shuffle). The twins read the same memory, each half a circle ahead of
 * the other: what one has just read would be in the caches for the other. */
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

KEEP static void compute(long iterations)
{
    uint64_t x = 1;
    for (long i = 0; i < iterations; i++) {
        x = x * 6364136223846793005u + 11;
        __asm__ volatile("" : "+r"(x));
    }
    sink = x;
}

KEEP static void read_memory(long iterations)
{
    static uint32_t at;
    uint32_t next = at;
    for (long i = 0; i < iterations; i++)
        next = lines[next].next;
    at = next;
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

KEEP static void exchange(long round_trips)
{
    char byte = 'x';
    for (long i = 0; i < round_trips; i++)
        if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
            die("pipe");
}

static sem_t begin[THREADS], done;

KEEP static long descend(long depth, void (*bottom)(long), long n)
{
    if (depth == 0) {
        bottom(n);
        return 0;
    }
    long below = descend(depth - 1, bottom, n);
    __asm__ volatile("" : "+r"(below)); /* neither a tail call nor a loop */
    return below + 1;
}

#define FUNCTION(n)                                                    \
    KEEP static uint64_t compute_##n(uint64_t x, long iterations)      \
    {                                                                  \
        for (long i = 0; i < iterations; i++) {                        \
            x = x * 6364136223846793005u + (2 * n + 1);                \
            __asm__ volatile("" : "+r"(x));                            \
        }                                                              \
        return x;                                                      \
    }
FUNCTION(0) FUNCTION(1) FUNCTION(2) FUNCTION(3) FUNCTION(4) FUNCTION(5) FUNCTION(6) FUNCTION(7)

/* An eighth of the work in each of eight functions. */
KEEP static void compute_in_eight(long iterations)
{
    static uint64_t (*const functions[])(uint64_t, long) = {
        compute_0, compute_1, compute_2, compute_3, compute_4, compute_5, compute_6, compute_7};
    uint64_t x = 1;
    for (int n = 0; n < 8; n++)
        x = functions[n](x, iterations / 8);
    sink = x;
}

static void *worker(void *number)
{
    while (!sem_wait(&begin[(long)number])) {
        descend(arg.depth, compute, arg.iterations);
        if (sem_post(&done))
            die("sem_post");
    }
    return NULL;
}

static void start_workers(void)
{
    pthread_attr_t small;
    pthread_t thread;
    if (pthread_attr_init(&small) || pthread_attr_setstacksize(&small, 1 << 16) || sem_init(&done, 0, 0))
        die("threads");
    for (long i = 0; i < THREADS; i++)
        if (sem_init(&begin[i], 0, 0) || pthread_create(&thread, &small, worker, (void *)i))
            die("threads");
}

/* Threads of `steps`: as many as were asked for until now. The first is the program's own. */
static void *stepper(void *number)
{
    while (!sem_wait(&begin[(long)number])) {
        descend(shared->depth, compute_in_eight, arg.iterations);
        if (sem_post(&done))
            die("sem_post");
    }
    return NULL;
}

static void start_steppers(long threads)
{
    static long started = 1;
    pthread_attr_t small;
    pthread_t thread;
    if (pthread_attr_init(&small) || pthread_attr_setstacksize(&small, 1 << 16))
        die("threads");
    for (; started < threads && started < THREADS; started++)
        if (sem_init(&begin[started], 0, 0) || pthread_create(&thread, &small, stepper, (void *)started))
            die("threads");
}

static void step(long turn)
{
    long number = turn % shared->threads;
    start_steppers(shared->threads);
    if (!number)
        descend(shared->depth, compute_in_eight, arg.iterations);
    else if (sem_post(&begin[number]) || sem_wait(&done))
        die("semaphores");
}

static void start_echo(void)
{
    pthread_t thread;
    if (pipe(there) || pipe(back) || pthread_create(&thread, NULL, echo, NULL))
        die("pipe or thread");
}

static int may_storm(long turn)
{
    return !strcmp(arg.kind, "storm") || (!strcmp(arg.kind, "late") && turn >= arg.step_at);
}

static void work(long turn)
{
    if (!strcmp(arg.kind, "steps")) {
        step(turn);
    } else if (!strcmp(arg.kind, "threads")) {
        if (sem_post(&begin[turn % THREADS]) || sem_wait(&done))
            die("semaphores");
    } else if (!strcmp(arg.kind, "pair") || (may_storm(turn) && turn / STORM_TURNS % 2)) {
        exchange(arg.iterations / ITERATIONS_PER_TRIP);
    } else if (lines) {
        read_memory(arg.iterations);
    } else {
        compute(arg.iterations);
    }
}

static void pass_on(int to)
{
    if (write(to, "x", 1) != 1)
        die("baton");
}

static void await(int from)
{
    char baton;
    if (read(from, &baton, 1) != 1)
        exit(0); /* the other is gone */
}

static uint64_t timed(long turn)
{
    uint64_t before = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    work(turn);
    return now_ns(CLOCK_PROCESS_CPUTIME_ID) - before;
}

static int is_input_over(void)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    char byte;
    return poll(&input, 1, 0) > 0 && read(0, &byte, 1) <= 0;
}

static int control;

static void rest(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&t, NULL);
}

/* What the control file says of the next turn; rests as long as it wants after the last, which took so long. */
static void obey(uint64_t took_ns)
{
    enum { PAUSE_NS = 20000000, LONGEST_NS = 500000000 };
    for (;;) {
        char text[64] = {0};
        long duty = 0, depth = 0, threads = 0;
        ssize_t got = pread(control, text, sizeof text - 1, 0);
        if (got <= 0 || sscanf(text, "%ld %ld %ld", &duty, &depth, &threads) != 3 || threads < 1 || threads >= THREADS)
            die("control file");
        shared->depth = depth;
        shared->threads = threads;
        uint64_t ns = duty ? took_ns * (uint64_t)(100 - duty) / (uint64_t)duty : PAUSE_NS;
        rest(ns < LONGEST_NS ? ns : LONGEST_NS);
        if (duty || is_input_over())
            return;
    }
}

/* Turns from the present one to the last, in the twin and in the process. */
static long now;
KEEP static void take_turns(long last)
{
    /* The process takes its last turn too, even if it has not yet begun to wait for it when the twin says so. */
    for (; now < last && !(shared->over && now == shared->turns); now++) {
        if (is_twin) {
            if (control)
                obey(now ? turns[now - 1].twin_ns + turns[now - 1].process_ns : 0);
            turns[now].twin_ns = timed(now);
            shared->turns = now + 1;
            shared->over = now + 1 == MAX_TURNS || is_input_over();
            pass_on(to_process[1]);
            await(to_twin[0]);
        } else {
            await(to_process[0]);
            turns[now].process_ns = timed(now);
            turns[now].over_ns = now_ns(CLOCK_MONOTONIC);
            pass_on(to_twin[1]);
        }
    }
}

static void run(void)
{
    if (!strcmp(arg.kind, "storm") || !strcmp(arg.kind, "late") || !strcmp(arg.kind, "pair"))
        start_echo();
    if (!strcmp(arg.kind, "threads"))
        start_workers();
    if (!strcmp(arg.kind, "steps") && sem_init(&done, 0, 0))
        die("semaphore");
    if (!strcmp(arg.kind, "step")) {
        descend(arg.depth, take_turns, arg.step_at);
        descend(DEEP, take_turns, MAX_TURNS);
    } else {
        int above = strcmp(arg.kind, "threads") && strcmp(arg.kind, "steps");
        descend(above ? arg.depth : 0, take_turns, MAX_TURNS);
    }
}

static void print(void)
{
    FILE *to = fopen(arg.out, "w");
    if (!to)
        die(arg.out);
    fprintf(to, "{\"turns\":[");
    for (long n = 0; n < shared->turns; n++)
        fprintf(to, "%s[%lu,%lu,%lu]", n ? "," : "", turns[n].twin_ns, turns[n].process_ns, turns[n].over_ns);
    fprintf(to, "]}\n");
    if (fclose(to))
        die(arg.out);
}

static void stay_on(long cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one))
        die("sched_setaffinity");
}

static void usage(void)
{
    fprintf(stderr, "twins compute|memory|step|storm|late|pair|threads|steps --iterations N [--depth D] [--step-at TURN] [--on CPU]"
                    " [--control FILE] --out FILE\n");
    exit(2);
}

static void parse(int argc, char **argv)
{
    if (argc < 4 || argc % 2)
        usage();
    arg.kind = argv[1];
    for (int i = 2; i < argc; i += 2) {
        const char *key = argv[i], *value = argv[i + 1];
        if (!strcmp(key, "--iterations")) arg.iterations = atol(value);
        else if (!strcmp(key, "--depth")) arg.depth = atol(value);
        else if (!strcmp(key, "--step-at")) arg.step_at = atol(value);
        else if (!strcmp(key, "--on")) arg.on = atol(value);
        else if (!strcmp(key, "--control")) arg.control = value;
        else if (!strcmp(key, "--out")) arg.out = value;
        else usage();
    }
    if (arg.iterations <= 0 || !arg.out || !strcmp(arg.kind, "steps") != !!arg.control)
        usage();
    if (arg.control && (control = open(arg.control, O_RDONLY | O_CLOEXEC)) < 0)
        die(arg.control);
}

static void *share(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    return memory;
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    if (arg.on >= 0)
        stay_on(arg.on);
    if (!strcmp(arg.kind, "memory"))
        make_circle();
    turns = share(MAX_TURNS * sizeof *turns);
    shared = share(sizeof *shared);
    if (pipe(to_process) || pipe(to_twin))
        die("pipe");
    pid_t process = fork();
    if (process < 0)
        die("fork");
    is_twin = process > 0;
    close(is_twin ? to_process[0] : to_process[1]);
    close(is_twin ? to_twin[1] : to_twin[0]);
    if (lines && !is_twin)
        read_memory(LINES / 2);
    if (is_twin) {
        printf("%d\n", process);
        fflush(stdout);
    }
    run();
    if (is_twin) {
        waitpid(process, NULL, 0);
        print();
    }
    exit(0);
}
