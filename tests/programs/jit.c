/* Makes code as it runs, and tells the names of it as run-time compilers do. Seconds are of CPU time: a third of them
 * goes to one function, two thirds to the other.
 *
 *   jit map SECONDS [delete|PLACE] two functions side by side, told in /tmp/perf-PID.map
 *   jit dump SECONDS FOLDER        one address that holds them in turn, told in FOLDER/jit-PID.dump; before that, for a
 *                                  third of the time, a function that was moved there, with lines
 *   jit dump SECONDS FOLDER PLACE  the same
 *   jit fork SECONDS               as map, but a child that has no list of its own does the work
 *   jit move SECONDS               none: two functions of its own, once all of its code is in memory without a file
 *
 * With `delete`, the program's own file is removed first. PLACE is where the code is put: `data` of the program, a `memfd`, or a
 * `file` that is no object (in /dev/shm, and removed) or `kept` (in /tmp, removed at the end).
 */
#define _GNU_SOURCE
#include "clock.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { CODE = 4096, SLICES = 30, CALLS = 50, ROUNDS = 20000 };
typedef void (*code_fn)(uint64_t);

/* Not all zero, so that it is in the file. */
static uint8_t in_data[2 * CODE] __attribute__((aligned(CODE))) = {1};
static char kept[64];

/* Counts its argument down to zero, with a frame. */
#if defined(__x86_64__)
enum { MACHINE = 62, LOOP_AT = 7 };
static const uint8_t count_down[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8, 0x48, 0xff, 0xc8, 0x75, 0xfb, 0x5d, 0xc3};
#elif defined(__aarch64__)
enum { MACHINE = 183, LOOP_AT = 8 };
static const uint32_t count_down[] = {0xa9bf7bfd, 0x910003fd, 0xf1000400, 0x54ffffe1, 0xa8c17bfd, 0xd65f03c0};
#endif

static uint8_t *code;
static FILE *out;
static uint64_t loads;

static void put(uint8_t *at)
{
    memcpy(at, count_down, sizeof count_down);
    __builtin___clear_cache((char *)at, (char *)at + sizeof count_down);
}

__attribute__((noinline, noclone)) static void work_for(uint8_t *function, double seconds)
{
    uint64_t until = now_ns(CLOCK_THREAD_CPUTIME_ID) + (uint64_t)(seconds * 1e9);
    while (now_ns(CLOCK_THREAD_CPUTIME_ID) < until)
        for (int i = 0; i < CALLS; i++)
            ((code_fn)(uintptr_t)function)(ROUNDS);
}

static void write_all(const void *bytes, size_t size)
{
    if (fwrite(bytes, 1, size, out) != size)
        die("fwrite");
}

static void numbers(const uint64_t *numbers, size_t count)
{
    write_all(numbers, count * sizeof *numbers);
}

static void record(uint32_t kind, size_t body)
{
    uint32_t head[2] = {kind, (uint32_t)(16 + body)};
    uint64_t time = now_ns(CLOCK_MONOTONIC);
    write_all(head, sizeof head);
    numbers(&time, 1);
}

static uint64_t task(void)
{
    return (uint64_t)getpid() << 32 | (uint64_t)getpid();
}

static void tell_load(uint8_t *at, const char *name)
{
    uint64_t address = (uintptr_t)at;
    record(0, 40 + strlen(name) + 1 + sizeof count_down);
    numbers((uint64_t[]){task(), address, address, sizeof count_down, ++loads}, 5);
    write_all(name, strlen(name) + 1);
    write_all(at, sizeof count_down);
    fflush(out);
}

static void tell_move(uint8_t *from, uint8_t *to)
{
    uint64_t old = (uintptr_t)from, new = (uintptr_t)to;
    record(1, 48);
    numbers((uint64_t[]){task(), new, old, new, sizeof count_down, loads}, 6);
    fflush(out);
}

/* Line 10 of made.src from the start on, line 20 from the loop on. */
static void tell_lines(uint8_t *at)
{
    uint64_t address = (uintptr_t)at;
    static const char file[] = "made.src", same[] = "\xff";
    record(2, 16 + 2 * 16 + sizeof file + sizeof same);
    numbers((uint64_t[]){address, 2, address, 10}, 4);
    write_all(file, sizeof file);
    numbers((uint64_t[]){address + LOOP_AT, 20}, 2);
    write_all(same, sizeof same);
}

static void begin_dump(const char *folder)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/jit-%d.dump", folder, getpid());
    out = fopen(path, "w+");
    if (!out)
        die(path);
    uint32_t words[] = {0x4a695444, 1, 40, MACHINE, 0, (uint32_t)getpid()};
    write_all(words, sizeof words);
    numbers((uint64_t[]){now_ns(CLOCK_MONOTONIC), 0}, 2);
    fflush(out);
    /* How profilers find it. */
    if (mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fileno(out), 0) == MAP_FAILED)
        die("mmap");
}

__attribute__((noinline, noclone)) static void run_map(double seconds)
{
    work_for(code, seconds / 3);
    work_for(code + 64, seconds * 2 / 3);
}

/* Removed at the end, as some programs do. */
static void write_map(char *path, size_t size)
{
    snprintf(path, size, "/tmp/perf-%d.map", getpid());
    out = fopen(path, "w");
    if (!out)
        die(path);
    put(code);
    put(code + 64);
    fprintf(out, "%lx %zx stale_name\n", (unsigned long)code, sizeof count_down);
    fprintf(out, "%lx %zx made_short\n", (unsigned long)code, sizeof count_down);
    fprintf(out, "%lx %zx made long;er\n", (unsigned long)code + 64, sizeof count_down);
    fclose(out);
}

static void run_dump(double seconds)
{
    uint8_t *before = code + 1024;
    put(before);
    put(code);
    tell_lines(before);
    tell_load(before, "_ZN4made5movedEv");
    tell_move(before, code);
    work_for(code, seconds / 3);
    for (int slice = 0; slice < SLICES; slice++) {
        tell_load(code, "made_short");
        work_for(code, seconds * 2 / 9 / SLICES);
        tell_load(code, "made_long");
        work_for(code, seconds * 4 / 9 / SLICES);
    }
}

static void in_child(double seconds)
{
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        run_map(seconds);
        exit(0);
    }
    if (waitpid(child, NULL, 0) != child)
        die("waitpid");
}

static int shared_file(const char *place)
{
    snprintf(kept, sizeof kept, "%s/jit-code-%d", strcmp(place, "kept") ? "/dev/shm" : "/tmp", getpid());
    int file = strcmp(place, "memfd") ? open(kept, O_CREAT | O_EXCL | O_RDWR, 0700) : memfd_create("jit", 0);
    if (file < 0 || ftruncate(file, 2 * CODE))
        die(place);
    if (strcmp(place, "kept")) {
        unlink(kept);
        kept[0] = 0;
    }
    return file;
}

/* Memory to put code in. */
static uint8_t *memory(const char *place)
{
    const int all = PROT_READ | PROT_WRITE | PROT_EXEC;
    if (!strcmp(place, "data"))
        return mprotect(in_data, CODE, all) ? MAP_FAILED : in_data;
    if (!strcmp(place, "memfd") || !strcmp(place, "file") || !strcmp(place, "kept"))
        return mmap(NULL, CODE, all, MAP_SHARED, shared_file(place), CODE);
    return mmap(NULL, CODE, all, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Equal, but for the linker: each is a place of its own. */
__attribute__((noinline, noclone)) static void made_short(uint64_t rounds)
{
    for (volatile uint64_t left = rounds; left; left--)
        ;
}

__attribute__((noinline, noclone)) static void made_long(uint64_t rounds)
{
    for (volatile uint64_t left = rounds + 1; left; left--)
        ;
}

/* Puts a copy of the program's code, in memory without a file, where the code is. */
static void move_own_code(void)
{
    unsigned long start = 0, end = 0;
    char line[512], rights[8];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %7s", &start, &end, rights) == 3 && rights[2] == 'x'
            && start <= (uintptr_t)move_own_code && (uintptr_t)move_own_code < end)
            break;
    size_t size = end - start;
    void *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED)
        die("mmap");
    memcpy(copy, (void *)start, size);
    if (mprotect(copy, size, PROT_READ | PROT_WRITE | PROT_EXEC)
        || mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)start) == MAP_FAILED
        || mprotect((void *)start, size, PROT_READ | PROT_EXEC))
        die("mremap");
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    double seconds = atof(argv[2]);
    if (argc > 3 && !strcmp(argv[3], "delete") && unlink(argv[0]))
        die(argv[0]);
    if (!strcmp(argv[1], "move")) {
        move_own_code();
        work_for((uint8_t *)made_short, seconds / 3);
        work_for((uint8_t *)made_long, seconds * 2 / 3);
        return 0;
    }
    int is_dump = !strcmp(argv[1], "dump") && argc > 3;
    code = memory(argc > 3 + is_dump ? argv[3 + is_dump] : "");
    if (code == MAP_FAILED)
        die("memory for code");
    char path[64] = "";
    if (is_dump) {
        begin_dump(argv[3]);
        run_dump(seconds);
    } else {
        write_map(path, sizeof path);
        if (!strcmp(argv[1], "fork"))
            in_child(seconds);
        else
            run_map(seconds);
    }
    if (kept[0])
        unlink(kept);
    return path[0] && unlink(path) ? 3 : 0;
}
