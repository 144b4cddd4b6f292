/* A program that lives for some milliseconds of CPU time, in functions of its own name (-DNAME=...).
 *
 *   brief MILLISECONDS
 */
#include "clock.h"

#define JOIN(a, b) a##b
#define NAMED(name, end) JOIN(name, end)
#ifndef NAME
#define NAME brief
#endif

__attribute__((noinline, noclone)) static uint64_t NAMED(NAME, _inner)(uint64_t x)
{
    for (int i = 0; i < 20000; i++) {
        x = x * 6364136223846793005u + 11;
        __asm__ volatile("" : "+r"(x));
    }
    return x;
}

__attribute__((noinline, noclone)) static uint64_t NAMED(NAME, _outer)(uint64_t until_ns)
{
    uint64_t x = 1;
    while (now_ns(CLOCK_PROCESS_CPUTIME_ID) < until_ns)
        x = NAMED(NAME, _inner)(x) + 1;
    return x;
}

int main(int argc, char **argv)
{
    double ms = argc > 1 ? atof(argv[1]) : 5;
    return NAMED(NAME, _outer)((uint64_t)(ms * 1e6)) == 0;
}
