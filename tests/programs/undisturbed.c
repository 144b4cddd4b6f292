/* A program that a library is loaded into while it runs, and that notices if anything is not as it was: it checks what a thread
 * that was stopped and made to do something else could have lost. It runs until its input ends; then it prints one line, and its
 * status is 0 only if all was well.
 *
 *   undisturbed threads|alone|exec|filtered|handled
 */
#define _GNU_SOURCE
#include "clock.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define KEEP __attribute__((noinline, noclone))

static volatile int done;
static long interrupted;
static volatile uint64_t sink;

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        _exit(1);
    }
}

/* What a call by registers that were not all put back would show: vector registers, flags, errno. */
KEEP static void compute(void)
{
    errno = 4242;
#ifdef __x86_64__
    uint64_t before[2] = {0x0123456789abcdefu, 0xfedcba9876543210u}, after[2], direction;
    __asm__ volatile("movdqu (%1), %%xmm7\n std\n mov $30000, %%rcx\n 1: dec %%rcx\n jnz 1b\n"
                     "pushfq\n pop %0\n cld\n movdqu %%xmm7, (%2)"
                     : "=&r"(direction) : "r"(before), "r"(after) : "rcx", "xmm7", "memory", "cc");
    check(!memcmp(before, after, sizeof before), "a vector register was lost");
    check(direction >> 10 & 1, "a flag was lost");
#endif
    for (int i = 0; i < 20000; i++)
        sink = sink * 6364136223846793005u + 11;
    check(errno == 4242, "errno was lost");
}

static void *computer(void *unused)
{
    while (!done)
        compute();
    return unused;
}

static void churn_a_little(unsigned *seed, char **kept, int count)
{
    for (int i = 0; i < 200; i++) {
        int which = rand_r(seed) % count;
        size_t size = 1 + (size_t)(rand_r(seed) % 20000);
        if (kept[which])
            check(kept[which][0] == (char)which, "memory was written over");
        free(kept[which]);
        kept[which] = malloc(size);
        memset(kept[which], which, size);
    }
}

static void *churner(void *unused)
{
    char *kept[64] = {0};
    unsigned seed = 1;
    while (!done)
        churn_a_little(&seed, kept, 64);
    return unused;
}

static void *loader(void *unused)
{
    while (!done) {
        void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
        check(library && dlsym(library, "cos"), "a library was not loaded");
        dlclose(library);
        usleep(200);
    }
    return unused;
}

static void *brief(void *unused)
{
    compute();
    return unused;
}

static void *breeder(void *unused)
{
    while (!done) {
        pthread_t child;
        check(!pthread_create(&child, NULL, brief, NULL) && !pthread_join(child, NULL), "no thread");
        usleep(2000);
    }
    return unused;
}

static void *epoller(void *unused)
{
    struct epoll_event event;
    int set = epoll_create1(0);
    while (!done) {
        int count = epoll_wait(set, &event, 1, 20);
        check(count == 0 || errno == EINTR, "epoll_wait failed");
        interrupted += count < 0;
    }
    return unused;
}

static void *poller(void *unused)
{
    while (!done) {
        int count = poll(NULL, 0, 20);
        check(count == 0 || errno == EINTR, "poll failed");
        interrupted += count < 0;
    }
    return unused;
}

static void *sleeper(void *unused)
{
    while (!done) {
        struct timespec time = {.tv_nsec = 20000000};
        uint64_t begin = now_ns(CLOCK_MONOTONIC);
        int slept = nanosleep(&time, NULL);
        interrupted += slept < 0;
        check(slept < 0 || now_ns(CLOCK_MONOTONIC) - begin >= 20000000u, "a sleep was too short");
    }
    return unused;
}

static int pipes[2][2];

static void *echo(void *unused)
{
    char byte;
    for (;;) {
        ssize_t count = read(pipes[0][0], &byte, 1);
        check(count >= 0, "a read was interrupted");
        if (!count)
            return unused;
        check(write(pipes[1][1], &byte, 1) == 1, "a write was interrupted");
    }
}

static void *pinger(void *unused)
{
    char byte = 'x';
    while (!done) {
        check(write(pipes[0][1], &byte, 1) == 1 && read(pipes[1][0], &byte, 1) == 1, "a call was interrupted");
        usleep(300);
    }
    close(pipes[0][1]);
    return unused;
}

/* Children that allocate, reset every signal and become other programs. */
static void *parent(void *unused)
{
    while (!done) {
        int status;
        pid_t child = fork();
        if (!child) {
            for (int number = 1; number < 65; number++)
                signal(number, SIG_DFL);
            free(malloc(100000));
            uint64_t end = now_ns(CLOCK_THREAD_CPUTIME_ID) + 3000000u;
            while (now_ns(CLOCK_THREAD_CPUTIME_ID) < end)
                compute();
            _exit(7);
        }
        check(child > 0 && waitpid(child, &status, 0) == child, "no child");
        check(WIFEXITED(status) && WEXITSTATUS(status) == 7, "a child came to harm");
        usleep(5000);
    }
    return unused;
}

static void wait_for_the_end(void)
{
    char byte;
    while (read(0, &byte, 1) != 0)
        ;
    done = 1;
}

static void threads(void)
{
    void *(*all[])(void *) = {computer, churner, loader, breeder, epoller, poller, sleeper, pinger, echo, parent};
    pthread_t ids[sizeof all / sizeof *all];
    check(!pipe(pipes[0]) && !pipe(pipes[1]), "no pipe");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check(!pthread_create(&ids[i], NULL, all[i], NULL), "no thread");
    wait_for_the_end();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check(!pthread_join(ids[i], NULL), "no end");
}

/* One thread that never waits. */
static void alone(void)
{
    char *kept[64] = {0};
    unsigned seed = 2;
    fcntl(0, F_SETFL, O_NONBLOCK);
    char byte;
    while (read(0, &byte, 1) != 0) {
        for (int i = 0; i < 20; i++)
            compute();
        churn_a_little(&seed, kept, 64);
    }
}

/* Filters its own system calls: an unexpected one is its end. */
static void filtered(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    check(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "no filter");
    wait_for_the_end();
}

static void ignore(int number)
{
    (void)number;
}

/* Has a handler for everything. */
static void handled(void)
{
    for (int number = 1; number < 65; number++)
        signal(number, ignore);
    wait_for_the_end();
}

/* Becomes another program again and again, while it is looked at. */
static void execs(char **argv)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    uint64_t end = now_ns(CLOCK_MONOTONIC) + 3000000u;
    while (now_ns(CLOCK_MONOTONIC) < end)
        compute();
    if (poll(&input, 1, 1) == 0)
        execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    if (!strcmp(argv[1], "threads"))
        threads();
    else if (!strcmp(argv[1], "alone"))
        alone();
    else if (!strcmp(argv[1], "filtered"))
        filtered();
    else if (!strcmp(argv[1], "handled"))
        handled();
    else if (!strcmp(argv[1], "exec"))
        execs(argv);
    else
        return 2;
    printf("fine, %ld calls were interrupted\n", interrupted);
    return 0;
}
