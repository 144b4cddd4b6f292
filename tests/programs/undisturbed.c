/* A program that a library is loaded into while it runs, and that notices if anything is not as it was: it checks what a thread
 * that was stopped and made to do something else could have lost. It prints `ready` once it is past its beginning, and runs until its
 * input ends; then it prints one line, and its status is 0 only if all was well. With `later` and `deaf`, a thread changes once there
 * is a byte of input.
 *
 *   undisturbed threads|alone|exec|filtered|partly|later|handled|patient|aside|cramped|deaf|vfork|retire|latch|doze|poll|told|full
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
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>

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

static void ready(void)
{
    check(write(1, "ready\n", 6) == 6, "nobody listens");
}

/* Waits for a byte of input. */
static void wait_for_a_word(void)
{
    char byte;
    check(read(0, &byte, 1) == 1, "nobody is there");
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

static int epoll_set;

static void *epoller(void *unused)
{
    struct epoll_event event;
    while (!done) {
        int count = epoll_wait(epoll_set, &event, 1, 20);
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
    check((epoll_set = epoll_create1(0)) >= 0, "no file");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check(!pthread_create(&ids[i], NULL, all[i], NULL), "no thread");
    ready();
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
    ready();
    while (read(0, &byte, 1) != 0) {
        for (int i = 0; i < 20; i++)
            compute();
        churn_a_little(&seed, kept, 64);
    }
}

/* Filters its own system calls: an unexpected one is its end. */
static void put_up_filter(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    check(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "no filter");
}

static void filtered(void)
{
    put_up_filter();
    ready();
    wait_for_the_end();
}

/* Threads that do something once they are told to, and the one that tells them. */
static pthread_barrier_t are_told;

static void *shut_in(void *unused)
{
    pthread_barrier_wait(&are_told);
    put_up_filter();
    pthread_barrier_wait(&are_told);
    while (!done)
        usleep(1000);
    return unused;
}

/* One of its threads, and not the first, does: before it is ready, or later. */
static void partly(int later)
{
    pthread_t computing, shut;
    check(!pthread_barrier_init(&are_told, NULL, 2), "no barrier");
    check(!pthread_create(&computing, NULL, computer, NULL) && !pthread_create(&shut, NULL, shut_in, NULL), "no thread");
    if (later) {
        ready();
        wait_for_a_word();
    }
    pthread_barrier_wait(&are_told);
    pthread_barrier_wait(&are_told);
    if (!later)
        ready();
    wait_for_the_end();
    check(!pthread_join(computing, NULL) && !pthread_join(shut, NULL), "no end");
}

/* Waits for what never comes, in a call that being stopped ends with an error since it has a timeout. */
static void patient(void)
{
    struct timeval timeout = {.tv_sec = 1};
    int pair[2];
    char byte;
    fcntl(0, F_SETFL, O_NONBLOCK);
    check(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "no socket");
    check(!setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout), "no timeout");
    ready();
    while (read(0, &byte, 1) != 0) {
        check(recv(pair[0], &byte, 1, 0) < 0, "something came");
        interrupted += errno == EINTR;
    }
}

/* The same on a stack that no thread was made with. */
static void aside(void)
{
    static char stack[1 << 18];
    static ucontext_t outside, inside;
    check(!getcontext(&inside), "no context");
    inside.uc_stack.ss_sp = stack;
    inside.uc_stack.ss_size = sizeof stack;
    inside.uc_link = &outside;
    makecontext(&inside, patient, 0);
    check(!swapcontext(&outside, &inside), "no way");
}

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

/* Waits with little room below, behind which there is a guard that is part of the same mapping. */
static void *crowded(void *unused)
{
    char here;
    uintptr_t below = ((uintptr_t)&here - 16384) & ~(uintptr_t)4095;
    if (madvise((void *)(below - 65536), 65536, MADV_GUARD_INSTALL))
        printf("no guards, ");
    pthread_barrier_wait(&are_told);
    while (!done)
        poll(NULL, 0, 20);
    return unused;
}

static void cramped(void)
{
    pthread_t other;
    pthread_attr_t attributes;
    size_t size = 1 << 20;
    void *stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(stack != MAP_FAILED && !pthread_attr_init(&attributes) && !pthread_attr_setstack(&attributes, stack, size), "no stack");
    check(!pthread_barrier_init(&are_told, NULL, 2), "no barrier");
    check(!pthread_create(&other, &attributes, crowded, NULL), "no thread");
    pthread_barrier_wait(&are_told);
    aside();
    done = 1;
    check(!pthread_join(other, NULL), "no end");
}

/* Takes signals that our agent uses by itself, and none that nobody has sent. */
static void *listener(void *unused)
{
    struct timespec time = {.tv_nsec = 500000000};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGURG);
    while (!done)
        check(sigtimedwait(&set, NULL, &time) < 0, "a signal came that nobody has sent");
    return unused;
}

static void *late_listener(void *unused)
{
    pthread_t other;
    sigset_t set;
    pthread_barrier_wait(&are_told);
    sigemptyset(&set);
    sigaddset(&set, SIGURG);
    check(!pthread_sigmask(SIG_BLOCK, &set, NULL), "no mask");
    check(!pthread_create(&other, NULL, listener, NULL) && !pthread_join(other, NULL), "no thread");
    return unused;
}

static void deaf(void)
{
    pthread_t computing, late;
    check(!pthread_barrier_init(&are_told, NULL, 2), "no barrier");
    check(!pthread_create(&computing, NULL, computer, NULL) && !pthread_create(&late, NULL, late_listener, NULL), "no thread");
    ready();
    wait_for_a_word();
    pthread_barrier_wait(&are_told);
    wait_for_the_end();
    check(!pthread_join(computing, NULL) && !pthread_join(late, NULL), "no end");
}

/* Is woken up by a signal that it blocks and reads from a file, as event loops are; a child sends one after the other, and each has
 * to come, or nobody goes on. */
static void latch(void)
{
    sigset_t set;
    int acknowledged[2], files;
    pid_t child, own = getpid();
    sigemptyset(&set);
    sigaddset(&set, SIGURG);
    check(!sigprocmask(SIG_BLOCK, &set, NULL) && !pipe(acknowledged), "no mask");
    int urgent = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = urgent}, end = {.events = EPOLLIN, .data.fd = 0};
    files = epoll_create1(EPOLL_CLOEXEC);
    check(urgent >= 0 && !epoll_ctl(files, EPOLL_CTL_ADD, urgent, &event) && !epoll_ctl(files, EPOLL_CTL_ADD, 0, &end), "no file");
    child = fork();
    check(child >= 0, "no child");
    if (!child) {
        char byte;
        close(acknowledged[1]);
        do
            check(!kill(own, SIGURG), "no signal");
        while (read(acknowledged[0], &byte, 1) == 1);
        _exit(0);
    }
    close(acknowledged[0]);
    ready();
    for (;;) {
        struct signalfd_siginfo came;
        int count = epoll_wait(files, &event, 1, 5000);
        if (count < 0 && errno == EINTR) {
            interrupted++;
            continue;
        }
        check(count == 1, "a wake-up was lost");
        if (event.data.fd == 0)
            break;
        check(read(urgent, &came, sizeof came) == sizeof came, "a wake-up was read twice");
        check(came.ssi_pid == (uint32_t)child && came.ssi_code == SI_USER, "a signal came that nobody has sent");
        compute();
        check(write(acknowledged[1], "x", 1) == 1, "no acknowledgement");
    }
    close(acknowledged[1]);
    check(waitpid(child, NULL, 0) == child, "no end");
}

/* Uses so much stack that a copy of it takes a while. */
static void *deep(void *unused)
{
    volatile char much[48 << 10];
    memset((void *)much, 1, sizeof much);
    while (!done)
        compute();
    sink += (uint64_t)much[sink % sizeof much];
    return unused;
}

/* Sleeps, or waits for nothing, until its input ends, beside a thread that computes. */
static void beside_deep(void *(*waits)(void *))
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    pthread_t computing;
    check(!pthread_create(&computing, NULL, deep, NULL), "no thread");
    ready();
    while (poll(&input, 1, 0) == 0)
        waits(NULL);
    done = 1;
    check(!pthread_join(computing, NULL), "no end");
}

static void *doze(void *unused)
{
    struct timespec time = {.tv_nsec = 200000000};
    interrupted += nanosleep(&time, NULL) < 0;
    return unused;
}

static void *wait_for_nothing(void *unused)
{
    interrupted += poll(NULL, 0, 200) < 0;
    return unused;
}

/* Threads that compute once they are told to, where there may be no number left for another file. */
KEEP static void *computes_when_told(void *unused)
{
    volatile char some[8 << 10];
    memset((void *)some, 1, sizeof some);
    pthread_barrier_wait(&are_told);
    while (!done)
        compute();
    sink += (uint64_t)some[sink % sizeof some];
    return unused;
}

static void told(int without_files)
{
    enum { THREADS = 24 };
    pthread_t ids[THREADS];
    check(!pthread_barrier_init(&are_told, NULL, THREADS + 1), "no barrier");
    for (int i = 0; i < THREADS; i++)
        check(!pthread_create(&ids[i], NULL, computes_when_told, NULL), "no thread");
    ready();
    wait_for_a_word();
    if (without_files) {
        struct rlimit few = {.rlim_cur = 128, .rlim_max = 128};
        check(!setrlimit(RLIMIT_NOFILE, &few), "no limit");
        while (dup(0) >= 0)
            ;
        check(errno == EMFILE, "no limit");
    }
    pthread_barrier_wait(&are_told);
    wait_for_the_end();
    for (int i = 0; i < THREADS; i++)
        check(!pthread_join(ids[i], NULL), "no end");
}

static void *retiree(void *after_s)
{
    uint64_t end = now_ns(CLOCK_MONOTONIC) + (uintptr_t)after_s * 1000000000u;
    while (!done && now_ns(CLOCK_MONOTONIC) < end)
        usleep(20000);
    return NULL;
}

/* Threads end, one soon and others late, and one that came after them computes. */
static void retire(void)
{
    static const uintptr_t after_s[] = {2, 20, 20};
    pthread_t others[3], computing;
    for (int i = 0; i < 3; i++)
        check(!pthread_create(&others[i], NULL, retiree, (void *)after_s[i]), "no thread");
    check(!pthread_create(&computing, NULL, computer, NULL), "no thread");
    ready();
    wait_for_the_end();
    for (int i = 0; i < 3; i++)
        check(!pthread_join(others[i], NULL), "no end");
    check(!pthread_join(computing, NULL), "no end");
}

/* Has a child that runs in its memory. */
static void vforks(void)
{
    int status;
    pid_t child = vfork();
    if (!child) {
        ready();
        wait_for_the_end();
        _exit(0);
    }
    check(child > 0 && waitpid(child, &status, 0) == child && !status, "no child");
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
    ready();
    wait_for_the_end();
}

/* Becomes another program again and again, while it is looked at or sampled, after up to a quarter of a second: under another name,
 * since it says only once that it is ready. */
static void execs(char **argv)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    if (strcmp(argv[0], "again"))
        ready();
    argv[0] = "again";
    uint64_t begin = now_ns(CLOCK_MONOTONIC), life = begin % 250000000u;
    while (now_ns(CLOCK_MONOTONIC) < begin + life)
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
    else if (!strcmp(argv[1], "partly"))
        partly(0);
    else if (!strcmp(argv[1], "later"))
        partly(1);
    else if (!strcmp(argv[1], "patient"))
        patient();
    else if (!strcmp(argv[1], "aside"))
        aside();
    else if (!strcmp(argv[1], "cramped"))
        cramped();
    else if (!strcmp(argv[1], "deaf"))
        deaf();
    else if (!strcmp(argv[1], "retire"))
        retire();
    else if (!strcmp(argv[1], "latch"))
        latch();
    else if (!strcmp(argv[1], "doze"))
        beside_deep(doze);
    else if (!strcmp(argv[1], "poll"))
        beside_deep(wait_for_nothing);
    else if (!strcmp(argv[1], "told"))
        told(0);
    else if (!strcmp(argv[1], "full"))
        told(1);
    else if (!strcmp(argv[1], "vfork"))
        vforks();
    else if (!strcmp(argv[1], "handled"))
        handled();
    else if (!strcmp(argv[1], "exec"))
        execs(argv);
    else
        return 2;
    printf("fine, %ld calls were interrupted\n", interrupted);
    return 0;
}
