/* Loads a library, works in it, then works outside it: so that the file can be deleted, replaced or
 * truncated under a profiler. Seconds are of CPU time. Says "inside" and "outside" as it goes.
 *
 *   host LIBRARY SECONDS_INSIDE SECONDS_OUTSIDE [delete]
 */
#include "clock.h"

#include <dlfcn.h>
#include <string.h>

typedef uint64_t (*work_fn)(uint64_t);
static volatile uint64_t sink;

__attribute__((noinline, noclone)) uint64_t host_work(uint64_t x)
{
    for (long i = 0; i < 20000; i++) {
        x = x * 6364136223846793005u + 13;
        __asm__ volatile("" : "+r"(x));
    }
    return x;
}

__attribute__((noinline, noclone)) static void work_for(work_fn work, double seconds)
{
    uint64_t until = now_ns(CLOCK_THREAD_CPUTIME_ID) + (uint64_t)(seconds * 1e9);
    while (now_ns(CLOCK_THREAD_CPUTIME_ID) < until)
        sink = work(sink);
}

static void say(const char *where)
{
    printf("%s\n", where);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    void *library = dlopen(argv[1], RTLD_NOW);
    work_fn plugin = library ? (work_fn)(uintptr_t)dlsym(library, "plugin_work") : NULL;
    if (!plugin) {
        fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    if (argc > 4 && !strcmp(argv[4], "delete") && unlink(argv[1]))
        die(argv[1]);
    say("inside");
    work_for(plugin, atof(argv[2]));
    say("outside");
    work_for(host_work, atof(argv[3]));
    return 0;
}
