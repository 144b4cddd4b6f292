/* Sleeps, and works at the end of every period: for 200 ms of CPU time, or as long as it is told.
 *
 *   idler SECONDS PERIOD_SECONDS [WORK_SECONDS]
 */
#include "clock.h"

static volatile uint64_t sink;

__attribute__((noinline, noclone)) static uint64_t burst(double seconds)
{
    uint64_t until = now_ns(CLOCK_THREAD_CPUTIME_ID) + (uint64_t)(seconds * 1e9), x = 1;
    while (now_ns(CLOCK_THREAD_CPUTIME_ID) < until)
        for (int i = 0; i < 20000; i++)
            x = x * 6364136223846793005u + 11;
    return x;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 4, period = argc > 2 ? atof(argv[2]) : 2;
    double work = argc > 3 ? atof(argv[3]) : .2;
    uint64_t end = now_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e9);
    while (now_ns(CLOCK_MONOTONIC) < end) {
        usleep((useconds_t)((period - work) * 1e6));
        sink = burst(work);
    }
    printf("{\"cpu_s\":%.6f}\n", rusage_s(RUSAGE_SELF));
    return 0;
}
