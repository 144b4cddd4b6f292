/* A library that is loaded where another one was: `FRAME` bytes of stack in each function. */
#include <stdint.h>
#define APART __attribute__((noinline, noclone))

/* Next to nothing. */
APART uint64_t called(uint64_t x) { return x + 1; }

APART uint64_t library_leaf(uint64_t x)
{
    volatile char room[FRAME];
    room[0] = (char)x;
    for (int i = 0; i < 400000; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        x ^= x >> 29;
    }
    return x + (uint64_t)room[0];
}

APART uint64_t enter(uint64_t x)
{
    volatile char room[FRAME];
    room[0] = (char)x;
    return library_leaf(x) + (uint64_t)room[0];
}
