/* What the kernel's ticks take of a busy thread, with a signal that comes at one and without.
 *
 * The thread does the same piece of work over and over and looks at the clock in short steps: a step that takes much longer
 * was interrupted. Whether a handler has run is seen below the stack pointer, where the kernel has put its frame: a mark that
 * stood there is gone. Nothing of this asks the kernel or whoever sends the signals.
 *
 *   ticked compute|memory SECONDS DEPTH    a line for each piece that was interrupted once, when it is all over:
 *                                          `signal` or `plain`, when (ns of the monotonic clock), for how long
 *                                          it stood still, and how long the whole piece took (ns)
 *   ticked pace SECONDS                    a line for each second: pieces done in it, and those with a signal
 */
#include "clock.h"

#include <string.h>

#define KEEP __attribute__((noinline, noclone))
#define STEPS 100
#define MOST 400000
/* Below the stack pointer: no call of ours reaches to the first, every frame of the kernel reaches behind it. */
#define NEAR 1024
#define FAR 12288
#define MARK 0x6d61726b6d61726bu
/* A step that took so much longer was interrupted (ns). */
#define LONGER 1500
/* Bytes that the work for memory goes through: much more than a handler could put out of the caches. */
#define CROWD (1u << 20)

struct piece {
    uint64_t at_ns, stood_ns, took_ns;
    int has_signal;
};

static struct piece found[MOST];
static size_t found_count;
static unsigned char crowd[CROWD];
static volatile uint64_t sink;
static int is_memory, is_pace;
static double seconds;

static inline __attribute__((always_inline)) void step(uint64_t *state)
{
    uint64_t x = *state;
    if (is_memory)
        for (int i = 0; i < 40; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            crowd[x >> 44]++;
        }
    else
        for (int i = 0; i < 300; i++)
            x = x * 6364136223846793005u + 1442695040888963407u;
    *state = x;
}

static inline __attribute__((always_inline)) char *stack_pointer(void)
{
    char *here;
#ifdef __aarch64__
    __asm__ volatile("mov %0, sp" : "=r"(here));
#else
    __asm__ volatile("mov %%rsp, %0" : "=r"(here));
#endif
    return (char *)((uintptr_t)here & ~(uintptr_t)7);
}

/* Whether anything was written below the stack; the marks stand there again. */
static inline __attribute__((always_inline)) int is_marked_over(char *here)
{
    int over = 0;
    for (char *at = here - FAR; at < here - NEAR; at += 8)
        over |= *(volatile uint64_t *)at != MARK;
    if (over)
        for (char *at = here - FAR; at < here - NEAR; at += 8)
            *(volatile uint64_t *)at = MARK;
    return over;
}

KEEP static void measure(void)
{
    char *here = stack_pointer();
    uint64_t state = 88172645463325252u, usual = 400, pieces = 0, signals = 0;
    uint64_t begin = now_ns(CLOCK_MONOTONIC), end = begin + (uint64_t)(seconds * 1e9), second = begin + 1000000000u;
    uint64_t now = begin;
    is_marked_over(here);
    while (now < end) {
        uint64_t from = now_ns(CLOCK_MONOTONIC), last = from, at = 0, stood = 0;
        int interrupted = 0;
        for (int i = 0; i < STEPS; i++) {
            step(&state);
            now = now_ns(CLOCK_MONOTONIC);
            uint64_t took = now - last;
            if (took > usual + LONGER) {
                interrupted++;
                at = last;
                stood = took - usual;
            } else {
                usual += (uint64_t)(((int64_t)took - (int64_t)usual) / 64);
            }
            last = now;
        }
        pieces++;
        int has_signal = interrupted ? is_marked_over(here) : 0;
        if (interrupted == 1 && found_count < MOST && !is_pace)
            found[found_count++] = (struct piece){at, stood, now - from, has_signal};
        signals += (uint64_t)has_signal;
        if (is_pace && now >= second) {
            printf("%llu %llu\n", (unsigned long long)pieces, (unsigned long long)signals);
            fflush(stdout);
            is_marked_over(here); /* printing has reached below */
            pieces = signals = 0;
            second = now_ns(CLOCK_MONOTONIC) + 1000000000u;
        }
    }
    sink = state;
}

KEEP static void below(int frames)
{
    volatile char room[64];
    room[0] = (char)frames;
    if (frames > 0)
        below(frames - 1);
    else
        measure();
    sink += (uint64_t)room[0];
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    is_memory = !strcmp(argv[1], "memory");
    is_pace = !strcmp(argv[1], "pace");
    seconds = atof(argv[2]);
    below(argc > 3 ? atoi(argv[3]) : 0);
    if (is_pace)
        return 0;
    for (size_t i = 0; i < found_count; i++)
        printf("%s %llu %llu %llu\n", found[i].has_signal ? "signal" : "plain", (unsigned long long)found[i].at_ns,
               (unsigned long long)found[i].stood_ns, (unsigned long long)found[i].took_ns);
    return 0;
}
