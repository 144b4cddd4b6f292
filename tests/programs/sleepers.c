/* Many threads that sleep, and one that works. Says "ready" once all of them are there.
 *
 *   sleepers THREADS SECONDS
 */
#include "clock.h"

#include <limits.h>
#include <pthread.h>

static void *sleep_on(void *unused)
{
    pause();
    return unused;
}

__attribute__((noinline, noclone)) static uint64_t busy(uint64_t until)
{
    uint64_t x = 1;
    while (now_ns(CLOCK_MONOTONIC) < until)
        for (int i = 0; i < 20000; i++) {
            x = x * 6364136223846793005u + 11;
            __asm__ volatile("" : "+r"(x));
        }
    return x;
}

int main(int argc, char **argv)
{
    long threads = argc > 1 ? atol(argv[1]) : 1000;
    double seconds = argc > 2 ? atof(argv[2]) : 3;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN + 4096);
    for (long i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &small, sleep_on, NULL))
            die("pthread_create");
    }
    printf("ready\n");
    fflush(stdout);
    volatile uint64_t sink = busy(now_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e9));
    (void)sink;
    _exit(0);
}
