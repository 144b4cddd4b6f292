/* Wakes at a fixed time of every period, works for a while and sleeps again: in step with the kernel's tick, where its length
 * divides the period.
 *
 *   locked SECONDS PERIOD_US WORK_US PHASE_US
 *
 * Three tenths of the work are in `early`, the rest in `late`. Prints its CPU time.
 */
#include "clock.h"

static volatile uint64_t sink;

static inline uint64_t until(uint64_t end)
{
    uint64_t x = 1;
    while (now_ns(CLOCK_MONOTONIC) < end)
        for (int i = 0; i < 200; i++)
            x = x * 6364136223846793005u + 11;
    return x;
}

__attribute__((noinline, noclone)) static uint64_t early(uint64_t end)
{
    return until(end) + 1;
}

__attribute__((noinline, noclone)) static uint64_t late(uint64_t end)
{
    return until(end) + 2;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    double seconds = atof(argv[1]);
    uint64_t period = (uint64_t)(atof(argv[2]) * 1e3), work = (uint64_t)(atof(argv[3]) * 1e3);
    uint64_t phase = (uint64_t)(atof(argv[4]) * 1e3), end = now_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e9);
    uint64_t next = (now_ns(CLOCK_MONOTONIC) / period + 1) * period + phase;
    for (; next < end; next += period) {
        struct timespec at = { (time_t)(next / 1000000000u), (long)(next % 1000000000u) };
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, 0);
        sink = early(next + work * 3 / 10);
        sink = late(next + work);
    }
    printf("{\"cpu_s\":%.6f}\n", rusage_s(RUSAGE_SELF));
    return 0;
}
