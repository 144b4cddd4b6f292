/* A program that a guest in its process may not disturb: it checks what a signal handler of others could change.
 * It prints one line, and its status is 0 only if everything is as it would be without the guest.
 *
 *   neighbour errno|restart|prof|masks|inside|actions|sysv|altstack|children|threads|c11|coroutine|cloned|exits|late|strict|stricter|filtered|closed|open|spin SECONDS
 */
#define _GNU_SOURCE
#include "clock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <threads.h>
#include <ucontext.h>

#define KEEP __attribute__((noinline, noclone))

static volatile uint64_t sink;

KEEP static void spin_a_little(void)
{
    for (int i = 0; i < 20000; i++)
        sink = sink * 6364136223846793005u + 11;
}

/* CPU time of the calling thread. */
KEEP static void spin(double seconds)
{
    uint64_t end = now_ns(CLOCK_THREAD_CPUTIME_ID) + (uint64_t)(seconds * 1e9);
    while (now_ns(CLOCK_THREAD_CPUTIME_ID) < end)
        spin_a_little();
}

static void check(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static void keep_errno(void)
{
    uint64_t end = now_ns(CLOCK_THREAD_CPUTIME_ID) + 700000000u;
    while (now_ns(CLOCK_THREAD_CPUTIME_ID) < end) {
        errno = 4242;
        for (int i = 0; i < 50; i++)
            spin_a_little();
        check(errno == 4242, "errno was changed");
    }
}

/* Reads and writes that wait for each other, in two threads that are busy in between: none may be interrupted. */
static int pipes[2][2];

static void *echo(void *unused)
{
    char byte;
    for (;;) {
        ssize_t count = read(pipes[0][0], &byte, 1);
        check(count >= 0, "a read was interrupted");
        if (!count)
            return unused;
        spin_a_little();
        check(write(pipes[1][1], &byte, 1) == 1, "a write was interrupted");
    }
}

static void restart(void)
{
    pthread_t other;
    char byte = 'x';
    if (pipe(pipes[0]) || pipe(pipes[1]))
        die("pipe");
    check(!pthread_create(&other, NULL, echo, NULL), "no thread");
    uint64_t end = now_ns(CLOCK_THREAD_CPUTIME_ID) + 300000000u;
    while (now_ns(CLOCK_THREAD_CPUTIME_ID) < end) {
        check(write(pipes[0][1], &byte, 1) == 1, "a write was interrupted");
        spin_a_little();
        check(read(pipes[1][0], &byte, 1) == 1, "a read was interrupted");
    }
    close(pipes[0][1]);
    check(!pthread_join(other, NULL), "no end");
}

static volatile sig_atomic_t came[65];

static void note(int signal)
{
    came[signal]++;
}

/* Its own SIGPROF: as often as its timer says, and in its own handler. */
static void prof(void)
{
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
    struct itimerval each = {.it_interval = {.tv_usec = 10000}, .it_value = {.tv_usec = 10000}};
    check(!sigaction(SIGPROF, &action, NULL) && !setitimer(ITIMER_PROF, &each, NULL), "no timer");
    spin(1);
    memset(&each, 0, sizeof each);
    setitimer(ITIMER_PROF, &each, NULL);
    /* Every 10 ms, at ticks: each expiry is late by less than one, and none is lost. */
    check(came[SIGPROF] > 60 && came[SIGPROF] < 130, "SIGPROF came too often or too rarely");
    struct sigaction now;
    check(!sigaction(SIGPROF, NULL, &now) && now.sa_handler == note, "another handler");
}

KEEP static void *blocked(void *seconds)
{
    sigset_t all, now;
    sigfillset(&all);
    check(!pthread_sigmask(SIG_SETMASK, &all, NULL), "no mask");
    spin(*(double *)seconds);
    check(!pthread_sigmask(SIG_SETMASK, NULL, &now), "no mask");
    for (int signal = 1; signal < 32; signal++)
        if (signal != SIGKILL && signal != SIGSTOP)
            check(sigismember(&now, signal) == 1, "a signal is not blocked any more");
    return NULL;
}

/* Three quarters of the time pass in a handler that blocks every signal. */
KEEP static void in_handler(int unused)
{
    (void)unused;
    uint64_t end = now_ns(CLOCK_THREAD_CPUTIME_ID) + 120000000u;
    while (now_ns(CLOCK_THREAD_CPUTIME_ID) < end)
        for (int i = 0; i < 20000; i++)
            sink = sink * 6364136223846793005u + 11;
}

KEEP static void out_of_handler(void)
{
    spin(.04);
    sink++;
}

static void handles(void)
{
    struct sigaction action = {.sa_handler = in_handler}, now;
    sigfillset(&action.sa_mask);
    check(!sigaction(SIGUSR1, &action, NULL) && !sigaction(SIGUSR1, NULL, &now), "no handler");
    for (int signal = SIGRTMIN; signal <= SIGRTMAX; signal++)
        check(sigismember(&now.sa_mask, signal) == 1, "another mask");
    for (int i = 0; i < 8; i++) {
        out_of_handler();
        check(!raise(SIGUSR1), "no signal");
    }
    sigemptyset(&action.sa_mask);
    check(!sigaction(SIGUSR1, &action, &now) && sigismember(&now.sa_mask, SIGRTMAX - 5) == 1, "another mask");
    check(!sigaction(SIGUSR1, NULL, &now) && !sigismember(&now.sa_mask, SIGRTMAX - 5), "another mask");
}

/* A thread that blocks every signal, as workers of servers do. */
static void masks(void)
{
    double seconds = 0.8;
    pthread_t other;
    check(!pthread_create(&other, NULL, blocked, &seconds) && !pthread_join(other, NULL), "no thread");
}

/* Resets a signal, and says what was done about it. */
static void (*signal_reset(int number))(int)
{
    return signal(number, SIG_DFL);
}

/* Every signal is the program's to handle, ignore and reset, and is told to be as it was left. */
static void actions(void)
{
    for (int signal = 1; signal <= SIGRTMAX; signal++) {
        struct sigaction ours = {.sa_handler = note, .sa_flags = SA_RESTART | SA_NODEFER}, now;
        if (signal == SIGKILL || signal == SIGSTOP || (signal > 31 && signal < SIGRTMIN))
            continue;
        check(!sigaction(signal, NULL, &now) && (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN), "not its own");
        void (*before)(int) = now.sa_handler;
        check(!sigaction(signal, &ours, &now) && now.sa_handler == before, "not as it was");
        spin(0.01);
        check(!raise(signal) && came[signal] == 1, "a signal did not come, or came twice");
        check(!sigaction(signal, NULL, &now) && now.sa_handler == note && now.sa_flags & SA_NODEFER, "not as it was left");
        check(note == signal_reset(signal), "not reset");
        spin(0.01);
    }
    /* Ignored and reset, it ends nobody while timers run. */
    pid_t child = fork();
    if (!child) {
        for (int signal = SIGRTMIN; signal <= SIGRTMAX; signal++)
            signal_reset(signal);
        spin(0.2);
        raise(SIGRTMAX - 2);
        _exit(7); /* the signal's own action ends it before */
    }
    int status;
    check(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGRTMAX - 2,
          "a signal that nobody handles did not end the process");
}

/* A handler on a stack of its own, busy for long. */
static char *other_stack;

static void on_other_stack(int signal)
{
    char here;
    check(&here > other_stack && &here < other_stack + 65536, "not on its own stack");
    spin(0.3);
    note(signal);
}

static void altstack(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    /* What follows is no memory: a copy that goes on would end the process. */
    other_stack = mmap(NULL, 65536 + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(other_stack != MAP_FAILED && !mprotect(other_stack + 65536, page, PROT_NONE), "no memory");
    stack_t stack = {.ss_sp = other_stack, .ss_size = 65536}, now;
    struct sigaction action = {.sa_handler = on_other_stack, .sa_flags = SA_ONSTACK};
    check(!sigaltstack(&stack, NULL) && !sigaction(SIGUSR1, &action, NULL), "no stack");
    raise(SIGUSR1);
    spin(0.3);
    check(came[SIGUSR1] == 1, "the handler did not come to its end");
    check(!sigaltstack(NULL, &now) && now.ss_sp == other_stack && now.ss_size == 65536, "another stack");
}

static int ended(pid_t child)
{
    int status;
    pid_t got;
    do
        got = waitpid(child, &status, 0);
    while (got < 0 && errno == EINTR);
    return got == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void children(const char *self)
{
    extern char **environ;
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        if (!child) {
            spin(0.02);
            _exit(11);
        }
        check(ended(child) == 11, "fork");
        child = vfork();
        if (!child) {
            execl(self, self, "spin", "0.01", (char *)NULL);
            _exit(99);
        }
        check(ended(child) == 0, "vfork");
        char *words[] = {(char *)self, "spin", "0.01", NULL};
        check(!posix_spawn(&child, self, NULL, NULL, words, environ) && ended(child) == 0, "posix_spawn");
        check(!system("exit 0"), "system");
    }
}

KEEP static void *brief(void *unused)
{
    spin(0.002);
    return unused;
}

KEEP static void *leaves(void *unused)
{
    spin(0.01);
    pthread_exit(unused);
}

KEEP static void *waits(void *unused)
{
    for (;;) {
        spin(0.001);
        pthread_testcancel();
    }
    return unused;
}

static void clean_up(void *unused)
{
    (void)unused;
    note(SIGUSR2);
}

static void *with_cleanup(void *unused)
{
    (void)unused;
    pthread_cleanup_push(clean_up, NULL);
    waits(NULL);
    pthread_cleanup_pop(0);
    return NULL;
}

/* More than there are slots, one after another and many at once; ended in every way. */
static void threads(void)
{
    pthread_t all[600];
    int count = 0;
    for (int round = 0; round < 40; round++) {
        pthread_t one, two, three;
        void *got;
        check(!pthread_create(&one, NULL, brief, (void *)1) && !pthread_join(one, &got) && got == (void *)1, "return");
        check(!pthread_create(&two, NULL, leaves, (void *)2) && !pthread_join(two, &got) && got == (void *)2, "exit");
        check(!pthread_create(&three, NULL, with_cleanup, NULL) && !pthread_cancel(three) && !pthread_join(three, &got)
                  && got == PTHREAD_CANCELED, "cancel");
    }
    check(came[SIGUSR2] > 0, "no thread was cleaned up after");
    while (count < 600 && !pthread_create(&all[count], NULL, brief, NULL))
        count++;
    check(count == 600, "too few threads");
    while (count--)
        check(!pthread_join(all[count], NULL), "join");
}

KEEP static int of_c11(void *number)
{
    spin(0.3);
    return -(int)(intptr_t)number;
}

static void c11(void)
{
    thrd_t all[4];
    for (intptr_t i = 0; i < 4; i++)
        check(thrd_create(&all[i], of_c11, (void *)(i + 7)) == thrd_success, "no thread");
    for (int i = 0, got; i < 4; i++)
        check(thrd_join(all[i], &got) == thrd_success && got == -(i + 7), "another result");
}

/* A stack that nobody has told the C library of, with no memory behind it. */
static ucontext_t outside, inside;

KEEP static void below_coroutine(void)
{
    spin(0.8);
    spin_a_little();
}

KEEP static void coroutine_begins(void)
{
    below_coroutine();
    check(!swapcontext(&inside, &outside), "no way back");
}

static void coroutine(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *stack = mmap(NULL, 65536 + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(stack != MAP_FAILED && !mprotect(stack + 65536, page, PROT_NONE) && !getcontext(&inside), "no stack");
    inside.uc_stack.ss_sp = stack;
    inside.uc_stack.ss_size = 65536;
    inside.uc_link = &outside;
    makecontext(&inside, coroutine_begins, 0);
    check(!swapcontext(&outside, &inside), "no way there");
}

/* A thread that the C library knows nothing of. */
static int of_clone(void *unused)
{
    (void)unused;
    for (int i = 0; i < 60000; i++)
        spin_a_little();
    return 0;
}

static void cloned(void)
{
    static char stack[65536] __attribute__((aligned(16)));
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    check(clone(of_clone, stack + sizeof stack, flags, NULL) > 0, "no thread");
    spin(3.5);
}

/* The first thread leaves, others go on. */
static void *goes_on(void *unused)
{
    spin(0.5);
    puts("fine");
    exit(0);
    return unused;
}

static void exits(void)
{
    pthread_t other;
    check(!pthread_create(&other, NULL, goes_on, NULL), "no thread");
    pthread_exit(NULL);
}

KEEP static void *spins(void *unused)
{
    spin(1.5);
    return unused;
}

/* Threads that begin after a while, and use nearly all the time. */
static void late(void)
{
    spin(0.5);
    for (int round = 0; round < 2; round++) {
        pthread_t others[2];
        for (int i = 0; i < 2; i++)
            check(!pthread_create(&others[i], NULL, spins, NULL), "no thread");
        for (int i = 0; i < 2; i++)
            check(!pthread_join(others[i], NULL), "no end");
    }
}

/* Nothing but read, write, exit and the return from a handler is allowed from here on. */
static void strict(int by_prctl)
{
    spin(0.3);
    if (by_prctl ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) : syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL))
        die("strict");
    for (int i = 0; i < 15000; i++)
        spin_a_little();
    if (write(1, "fine\n", 5) != 5)
        syscall(SYS_exit, 4);
    syscall(SYS_exit, 0);
}

/* Timers end the process from here on. */
static void filtered(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, SYS_timer_create, 0, 2),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, SYS_timer_delete, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    spin(0.3);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        die("filtered");
    double seconds = 0.3;
    pthread_t other;
    spin(1);
    check(!pthread_create(&other, NULL, blocked, &seconds) && !pthread_join(other, NULL), "no thread");
}

/* Whoever returns from a handler from here on is ended; put up by the call that the C library has no function for. */
static void closed(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    /* A filter that minds nothing changes nothing about the next. */
    struct sock_filter open_filter[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog open_program = {.len = 1, .filter = open_filter};
    double seconds = 0.2;
    pthread_t other;
    spin(0.3);
    check(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &open_program)
              && !syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program), "no filter");
    spin(0.5);
    check(!pthread_create(&other, NULL, blocked, &seconds) && !pthread_join(other, NULL), "no thread");
}

/* A filter that minds nothing, and the promise that comes before it. */
static void shut_in_open(void)
{
    struct sock_filter filter[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {.len = 1, .filter = filter};
    spin(0.3);
    check(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "no filter");
    spin(600);
}

/* Every signal by the calls that System V had, some of which are deprecated. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static void sysv(void)
{
    for (int signal = 1; signal <= SIGRTMAX; signal++) {
        if (signal == SIGKILL || signal == SIGSTOP || signal == SIGCHLD || (signal > 31 && signal < SIGRTMIN))
            continue;
        /* What is done about it at first is what this process was given: `nohup` ignores one. */
        check(sysv_signal(signal, note) != SIG_ERR && sysv_signal(signal, SIG_DFL) == note, "another handler");
        check(sigset(signal, note) == SIG_DFL && sigset(signal, SIG_DFL) == note, "another handler");
        check(!sigignore(signal) && sigset(signal, SIG_DFL) == SIG_IGN, "it is not ignored");
        check(!siginterrupt(signal, 1) && !sighold(signal), "it cannot be blocked");
    }
    spin(.5);
    for (int signal = 1; signal <= SIGRTMAX; signal++)
        if (signal != SIGKILL && signal != SIGSTOP && (signal < 32 || signal >= SIGRTMIN))
            check(!sigrelse(signal), "it stays blocked");
    spin(.3);
}
#pragma GCC diagnostic pop

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "errno")) keep_errno();
    else if (!strcmp(what, "restart")) restart();
    else if (!strcmp(what, "prof")) prof();
    else if (!strcmp(what, "masks")) masks();
    else if (!strcmp(what, "inside")) handles();
    else if (!strcmp(what, "actions")) actions();
    else if (!strcmp(what, "sysv")) sysv();
    else if (!strcmp(what, "altstack")) altstack();
    else if (!strcmp(what, "children")) children(argv[0]);
    else if (!strcmp(what, "threads")) threads();
    else if (!strcmp(what, "c11")) c11();
    else if (!strcmp(what, "coroutine")) coroutine();
    else if (!strcmp(what, "cloned")) cloned();
    else if (!strcmp(what, "exits")) exits();
    else if (!strcmp(what, "late")) late();
    else if (!strcmp(what, "strict")) strict(1);
    else if (!strcmp(what, "stricter")) strict(0);
    else if (!strcmp(what, "filtered")) filtered();
    else if (!strcmp(what, "closed")) closed();
    else if (!strcmp(what, "open")) shut_in_open();
    else if (!strcmp(what, "spin") && argc > 2) spin(atof(argv[2]));
    else return 2;
    if (strcmp(what, "spin"))
        puts("fine");
    return 0;
}
