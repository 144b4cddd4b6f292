/* A program that writes nonsense into the memory that it shares with its profiler, while it works.
 *
 *   scribble head|slots|rings|all|records|flood|none SECONDS
 *
 * `records` writes records that are well made and lie: other processes, times that never were, weights without end, mappings
 * of files that are none. `flood` writes them as fast as they can be read. Prints `fine` if it has come to its end by itself.
 */
#include "clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

/* Words, as in agent-memory/src/layout.rs and slot.rs. */
#define HEADER 512
#define SLOT 16
#ifndef SLOTS
#define SLOTS 4096
#endif
#define RINGS (HEADER + SLOTS * SLOT)
#define RING (1 << 15)

static volatile uint64_t *memory;
static size_t words;
static uint64_t state = 88172645463325252u;
static atomic_int is_over;
static const char *what;

static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Numbers that matter more often than others. */
static uint64_t number(void)
{
    switch (draw() % 8) {
    case 0: return 0;
    case 1: return UINT64_MAX;
    case 2: return draw() % 70000;
    case 3: return 1ull << (draw() % 64);
    case 4: return now_ns(CLOCK_MONOTONIC) + draw() % 2000000000;
    case 5: return (uint64_t)getpid() << 8 | draw() % 4;
    default: return draw();
    }
}

static void find(void)
{
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to, offset;
        if (strstr(line, "memfd:sweetspot") && sscanf(line, "%lx-%lx %*s %lx", &from, &to, &offset) == 3 && !offset) {
            memory = (volatile uint64_t *)from;
            words = (to - from) / 8;
        }
    }
    if (maps)
        fclose(maps);
}

static void put_text(volatile uint64_t *at, const char *text)
{
    char bytes[512] = {0};
    strncpy(bytes, text, sizeof bytes - 1);
    for (size_t i = 0; i < sizeof bytes / 8; i++) {
        uint64_t word;
        memcpy(&word, bytes + 8 * i, 8);
        at[i] = word;
    }
}

/* A record in the ring of a slot of our own, which is claimed for somebody. */
static void lie(int index)
{
    static const char *files[] = {"/dev/zero", "/proc/kmsg", "/dev/tty", "/proc/self/mem", "/tmp", "\xff\xfe", "/../../etc/shadow"};
    volatile uint64_t *slot = memory + HEADER + index * SLOT, *ring = memory + RINGS + (size_t)index * RING;
    uint64_t head = slot[2], length, record[600] = {0};
    if (!slot[0] || draw() % 256 == 0) {
        static const int others[] = {1, 2, 0x7fffffff};
        uint64_t pid = draw() % 2 ? (uint64_t)getpid() : (uint64_t)others[draw() % 3];
        slot[1] = draw() % 2 ? pid : draw() % 100000;
        slot[0] = pid << 8 | 1;
        memory[28] = SLOTS - 1;
        memory[26]++;
        head = slot[2];
    }
    if (head - slot[8] > RING - 600)
        return;
    char line[300];
    switch (draw() % 4) {
    case 0: /* a sample */
        length = 22 + draw() % 500;
        for (size_t i = 3; i < length; i++)
            record[i] = number();
        record[0] = length << 8 | 1;
        record[1] = draw() % 2 ? now_ns(CLOCK_MONOTONIC) : number();
        record[2] = number();
        break;
    case 1: /* a process that begins */
        length = 5;
        record[0] = length << 8 | (2 + draw() % 2);
        record[1] = now_ns(CLOCK_MONOTONIC);
        record[2] = draw() % 2 ? 1 : draw();
        record[3] = number();
        record[4] = number();
        break;
    default: /* mapped code */
        snprintf(line, sizeof line, "%llx-%llx r-xp %llx %x:%x %llu %s\n", (unsigned long long)number(),
                 (unsigned long long)number(), (unsigned long long)number(), (unsigned)draw() % 300, (unsigned)draw() % 300,
                 (unsigned long long)number(), files[draw() % (sizeof files / sizeof *files)]);
        length = 3 + 64;
        put_text(record + 3, line);
        record[0] = length << 8 | 4;
        record[1] = now_ns(CLOCK_MONOTONIC);
        record[2] = draw() % 8 ? strlen(line) : draw() % 600;
    }
    for (size_t i = 0; i < length; i++)
        ring[(head + i) & (RING - 1)] = record[i];
    __atomic_store_n(slot + 2, head + length, __ATOMIC_RELEASE);
}

static void *scribble(void *unused)
{
    size_t from = 0, to = words;
    if (!strcmp(what, "head")) to = 32;
    else if (!strcmp(what, "slots")) from = HEADER, to = HEADER + 8 * SLOT;
    else if (!strcmp(what, "rings")) from = RINGS, to = RINGS + 4 * RING;
    while (!is_over) {
        if (!strcmp(what, "records") || !strcmp(what, "flood"))
            lie(4 + (int)(draw() % 8));
        else
            memory[from + draw() % (to - from)] = number();
        if (strcmp(what, "flood"))
            usleep(50);
    }
    return unused;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    what = argv[1];
    double seconds = atof(argv[2]);
    pthread_t others[2];
    find();
    if (!memory && strcmp(what, "none"))
        die("no memory");
    int count = strcmp(what, "none") ? 2 : 0;
    for (int i = 0; i < count; i++)
        if (pthread_create(&others[i], NULL, scribble, NULL))
            die("thread");
    volatile uint64_t sink = 0;
    uint64_t end = now_ns(CLOCK_MONOTONIC) + (uint64_t)(seconds * 1e9);
    while (now_ns(CLOCK_MONOTONIC) < end)
        for (int i = 0; i < 20000; i++)
            sink = sink * 6364136223846793005u + 11;
    is_over = 1;
    for (int i = 0; i < count; i++)
        pthread_join(others[i], NULL);
    puts("fine");
    return 0;
}
