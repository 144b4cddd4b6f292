/* The library that host.c loads. */
#include <stdint.h>

__attribute__((noinline, noclone)) uint64_t plugin_work(uint64_t x)
{
    for (long i = 0; i < 20000; i++) {
        x = x * 6364136223846793005u + 11;
        __asm__ volatile("" : "+r"(x));
    }
    return x + 1;
}
