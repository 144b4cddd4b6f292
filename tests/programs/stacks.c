/* Stacks that are known beforehand: `stacks MODE CPU_SECONDS [LIBRARY LIBRARY]`.
 *
 * Each mode works in a function `leaf`, or one that the mode names, below callers with names of their own. With the modes
 * `deleted` and `replaced`, the program's own file is first removed, or gives way to the file that is named. */
#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "clock.h"

#define APART __attribute__((noinline, noclone))
/* Behind a call, so that it is none in place of a return. */
#define RETURNS(value) do { __typeof__(value) result_ = (value); __asm__ volatile("" : "+r"(result_)); return result_; } while (0)

static uint64_t state = 1;
static char **arguments;

/* About a millisecond. */
APART uint64_t leaf(uint64_t x)
{
    for (int i = 0; i < 400000; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        x ^= x >> 29;
    }
    return x;
}

APART uint64_t level3(uint64_t x) { RETURNS(leaf(x + 3) + 1); }
APART uint64_t level2(uint64_t x) { RETURNS(level3(x + 2) ^ 5); }
APART uint64_t level1(uint64_t x) { RETURNS(level2(x + 1) + 7); }

/* The C library calls back, some from code without unwind tables. Through a pointer, since headers may define it inline. */
APART int compared(const void *key, const void *element)
{
    state = leaf(state + *(const uint64_t *)key);
    return *(const uint64_t *)element != state;
}
static void *(*volatile search)(const void *, const void *, size_t, size_t, int (*)(const void *, const void *)) = bsearch;
APART uint64_t caller_of_compared(uint64_t x) { RETURNS(search(&x, &x, 1, sizeof x, compared) ? x : x + 1); }

/* Two calls that are none: only debug information knows them. */
#define WITHIN static inline __attribute__((always_inline))
WITHIN uint64_t inlined2(uint64_t x) { RETURNS(leaf(x + 2) ^ 3); }
WITHIN uint64_t inlined1(uint64_t x) { RETURNS(inlined2(x + 1) + 9); }
APART uint64_t caller_of_inlined(uint64_t x) { RETURNS(inlined1(x + 1) + 2); }

/* Registers pushed and popped, and little else. */
APART uint64_t pushes(uint64_t a, uint64_t b, uint64_t c)
{
    register uint64_t d = a ^ b, e = b + c, f = c ^ a;
    __asm__ volatile("" : "+r"(d), "+r"(e), "+r"(f) : : "rbx", "r12", "r13", "r14", "r15");
    return d + e + f;
}

APART uint64_t pushes_deeper(uint64_t x)
{
    uint64_t kept[3] = { x, x + 1, x + 2 };
    __asm__ volatile("" : : "r"(kept) : "memory", "rbx", "r12", "r13");
    RETURNS(pushes(kept[0], kept[1], kept[2]) + kept[1]);
}

APART uint64_t caller_of_pushes(uint64_t x)
{
    for (int i = 0; i < 50000; i++)
        x += pushes_deeper(x);
    return x;
}

#ifdef WITH_LIBRARY
/* Calls of a library's function that does next to nothing: half of the time is in the linkage table. */
uint64_t called(uint64_t x);
APART uint64_t caller_of_stub(uint64_t x)
{
    for (int i = 0; i < 100000; i++)
        x += called(x);
    return x;
}
#endif

APART uint64_t caller_of_vdso(uint64_t x)
{
    struct timespec t;
    for (int i = 0; i < 20000; i++) {
        clock_gettime(CLOCK_MONOTONIC, &t);
        x += (uint64_t)t.tv_nsec;
    }
    return x;
}

/* The signal hits the first instruction of a function: one byte before it lies another one. */
uint64_t interrupted(uint64_t x);
__asm__(".text\n.globl interrupted\n.type interrupted, @function\ninterrupted:\n.cfi_startproc\n"
        "ud2\nlea 1(%rdi), %rax\nret\n.cfi_endproc\n.size interrupted, .-interrupted\n");

APART static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    state = leaf(state);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
}

APART uint64_t caller_of_interrupted(uint64_t x) { RETURNS(interrupted(x) + 1); }

static void handle_signals(int flags)
{
    static char other[1 << 16];
    stack_t stack = { .ss_sp = other, .ss_size = sizeof other };
    struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | flags };
    if (sigaltstack(&stack, NULL) || sigaction(SIGILL, &action, NULL))
        die("sigaction");
}

uint64_t assembly_framed(uint64_t x);

/* Frames of 16 KiB, in use. */
APART uint64_t wide(uint64_t x, int more)
{
    volatile char *room = alloca(16 << 10);
    for (int at = 0; at < 16 << 10; at += 1 << 10)
        room[at] = (char)x;
    RETURNS((more ? wide(x + 1, more - 1) : leaf(x)) + (uint64_t)room[0]);
}

/* A frame of 60 KiB whose midst was never written to, and is not in memory. */
APART uint64_t hollow(uint64_t x)
{
    volatile char *room = alloca(60 << 10);
    room[0] = (char)x;
    RETURNS(assembly_framed(x) + (uint64_t)room[0]);
}

APART uint64_t recursion(uint64_t x, int more) { RETURNS((more ? recursion(x + 1, more - 1) : leaf(x)) + 1); }

/* A frame that is aligned to more than the stack is; its caller is found through memory alone. */
APART uint64_t realigned(uint64_t x, int size)
{
    _Alignas(64) volatile char aligned[64];
    volatile char *more = alloca((size_t)size);
    aligned[0] = more[0] = (char)x;
    RETURNS(leaf(x) + (uint64_t)aligned[0] + (uint64_t)more[0]);
}

/* One after another in place of each other: only the last one has a frame. */
APART uint64_t tail2(uint64_t x) { return leaf(x + 1); }
APART uint64_t tail1(uint64_t x) { return tail2(x + 1); }
APART uint64_t caller_of_tail(uint64_t x) { RETURNS(tail1(x) + 1); }

/* Assembly without unwind information. One has a frame and calls back, one has a frame, one has none. */
uint64_t assembly_caller(uint64_t x);
uint64_t assembly_bare(uint64_t x);
#define LOOP "mov $1000000, %ecx\n1:\nimul $77, %rdi\nadd $13, %rdi\ndec %ecx\njnz 1b\nmov %rdi, %rax\n"
#define FUNCTION(name, body) \
    ".globl " name "\n.type " name ", @function\n" name ":\n" body "\n.size " name ", .-" name "\n"
__asm__(".text\n"
    FUNCTION("assembly_caller", "push %rbp\nmov %rsp, %rbp\npush %rbx\npush %rbx\ncall leaf\npop %rbx\npop %rbx\npop %rbp\nret")
    FUNCTION("assembly_framed", "push %rbp\nmov %rsp, %rbp\npush %rbx\n" LOOP "pop %rbx\npop %rbp\nret")
    FUNCTION("assembly_bare", LOOP "ret"));

APART uint64_t caller_of_assembly(uint64_t x) { RETURNS(assembly_caller(x) + 1); }
APART uint64_t caller_of_framed(uint64_t x) { RETURNS(assembly_framed(x) + 1); }
APART uint64_t caller_of_bare(uint64_t x) { RETURNS(assembly_bare(x) + 1); }

#ifndef WITHOUT_CONTEXTS
static ucontext_t scheduler, fiber;
APART static void fiber_body(void)
{
    for (;;) {
        state = level1(state);
        swapcontext(&fiber, &scheduler);
    }
}

APART uint64_t caller_of_fiber(uint64_t x)
{
    static char stack[1 << 16];
    if (fiber.uc_stack.ss_sp == NULL) {
        getcontext(&fiber);
        fiber.uc_stack.ss_sp = stack;
        fiber.uc_stack.ss_size = sizeof stack;
        makecontext(&fiber, fiber_body, 0);
    }
    swapcontext(&scheduler, &fiber);
    return x + 1;
}
#endif

/* Two libraries in turn, whose functions differ in their frames. */
APART uint64_t caller_of_library(uint64_t x)
{
    static int turn;
    void *library = dlopen(arguments[turn++ & 1], RTLD_NOW);
    if (library == NULL)
        die(dlerror());
    uint64_t (*enter)(uint64_t) = (uint64_t (*)(uint64_t))dlsym(library, "enter");
    for (int i = 0; i < 60; i++)
        x = enter(x);
    dlclose(library);
    return x;
}

APART uint64_t wide_frames(uint64_t x) { RETURNS(wide(x, 9) + 1); }
/* Stacks that are whole come first: they tell how such stacks end. */
APART uint64_t caller_of_hollow(uint64_t x)
{
    static int begun;
    for (; begun < 10000000; begun++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        x ^= x >> 29;
    }
    RETURNS(hollow(x) + 1);
}
APART uint64_t many_frames(uint64_t x) { RETURNS(recursion(x, 5000) + 1); }
APART uint64_t caller_of_realigned(uint64_t x) { RETURNS(realigned(x, (int)(x & 64) + 64) + 1); }

static const struct { const char *name; uint64_t (*work)(uint64_t); } MODES[] = {
    { "plain", level1 }, { "compared", caller_of_compared }, { "pushes", caller_of_pushes }, { "vdso", caller_of_vdso },
    { "signal", caller_of_interrupted }, { "altstack", caller_of_interrupted }, { "wide", wide_frames },
    { "hollow", caller_of_hollow }, { "recursion", many_frames }, { "realigned", caller_of_realigned }, { "tail", caller_of_tail },
    { "assembly", caller_of_assembly }, { "framed", caller_of_framed }, { "bare", caller_of_bare },
    { "library", caller_of_library }, { "thread", level1 }, { "fork", level1 }, { "inlined", caller_of_inlined },
    { "deleted", level1 }, { "replaced", level1 },
#ifdef WITH_LIBRARY
    { "stub", caller_of_stub },
#endif
#ifndef WITHOUT_CONTEXTS
    { "fiber", caller_of_fiber },
#endif
};

static uint64_t (*work)(uint64_t);
static double limit_s;

static void work_on(int who)
{
    while (rusage_s(who) < limit_s)
        state = work(state);
}

APART static void *thread_body(void *nothing)
{
    work_on(RUSAGE_SELF);
    return nothing;
}

int main(int count, char **words)
{
    for (size_t i = 0; count > 2 && i < sizeof MODES / sizeof *MODES; i++)
        if (strcmp(words[1], MODES[i].name) == 0)
            work = MODES[i].work;
    if (work == NULL)
        return fprintf(stderr, "usage: stacks MODE CPU_SECONDS [LIBRARY LIBRARY]\n"), 2;
    limit_s = atof(words[2]);
    arguments = words + 3;
    if (strcmp(words[1], "deleted") == 0 && unlink(words[0]))
        die(words[0]);
    if (strcmp(words[1], "replaced") == 0 && rename(words[3], words[0]))
        die(words[3]);
    if (work == caller_of_interrupted)
        handle_signals(strcmp(words[1], "altstack") == 0 ? SA_ONSTACK : 0);
    if (strcmp(words[1], "thread") == 0) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, thread_body, NULL))
            die("pthread_create");
        pthread_join(thread, NULL);
    } else if (strcmp(words[1], "fork") == 0) {
        if (fork() == 0) {
            work_on(RUSAGE_SELF);
            _exit(0);
        }
        wait(NULL);
    } else {
        work_on(RUSAGE_SELF);
    }
    return state == 0;
}
