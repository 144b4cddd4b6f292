/* Two threads that hand a byte to and fro through pipes: thousands of context switches a second.
 *
 *   pingpong SECONDS
 */
#include "clock.h"

#include <pthread.h>

static int there[2], back[2];

static void *echo(void *unused)
{
    char byte;
    while (read(there[0], &byte, 1) == 1)
        if (write(back[1], &byte, 1) != 1)
            break;
    return unused;
}

__attribute__((noinline, noclone)) static uint64_t exchange(uint64_t until)
{
    uint64_t round_trips = 0;
    char byte = 'x';
    while (now_ns(CLOCK_MONOTONIC) < until) {
        if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
            die("pipe");
        round_trips++;
    }
    return round_trips;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    pthread_t thread;
    if (pipe(there) || pipe(back) || pthread_create(&thread, NULL, echo, NULL))
        die("pipe or thread");
    uint64_t round_trips = exchange(now_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e9));
    close(there[1]);
    pthread_join(thread, NULL);
    printf("{\"round_trips\":%lu,\"cpu_s\":%.6f}\n", (unsigned long)round_trips, rusage_s(RUSAGE_SELF));
    return 0;
}
