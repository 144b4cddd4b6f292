/* A program in which threads begin all the time, and that notices if a signal ends their calls. It prints `ready` once
 * it has the threads that it begins with, and runs until its input ends; then it prints one line.
 *
 *   latecomers sleepers|crowd|becomes|alone|headless
 */
#define _GNU_SOURCE
#include "clock.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>

enum { MOST_SLEEPERS = 200, OLD = 300 };

static volatile int done;
static volatile uint64_t sink;
static long interrupted;

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

static void *computer(void *unused)
{
    while (!done)
        sink = sink * 6364136223846793005u + 11;
    return unused;
}

/* Calls that no signal handler lets go on, whatever it asks for (signal(7)). */
static void *sleeper(void *which)
{
    struct timespec time = {.tv_nsec = 20000000};
    while (!done) {
        int failed = (uintptr_t)which % 2 ? poll(NULL, 0, 20) < 0 : nanosleep(&time, NULL) < 0;
        if (failed && errno == EINTR)
            __atomic_fetch_add(&interrupted, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void *host(void *unused)
{
    pthread_t threads[MOST_SLEEPERS];
    uintptr_t count = 0;
    for (; !done && count < MOST_SLEEPERS; count++) {
        check(!pthread_create(&threads[count], NULL, sleeper, (void *)count), "no thread");
        usleep(20000);
    }
    while (count > 0)
        check(!pthread_join(threads[--count], NULL), "no end");
    return unused;
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ending = PTHREAD_COND_INITIALIZER;

static void *old(void *unused)
{
    pthread_setname_np(pthread_self(), "old");
    pthread_mutex_lock(&mutex);
    while (!done)
        pthread_cond_wait(&ending, &mutex);
    pthread_mutex_unlock(&mutex);
    return unused;
}

static void *brief(void *unused)
{
    usleep(rand() % 2000);
    return unused;
}

static void *breeder(void *unused)
{
    while (!done) {
        pthread_t children[20];
        for (int i = 0; i < 20; i++)
            check(!pthread_create(&children[i], NULL, brief, NULL), "no thread");
        for (int i = 0; i < 20; i++)
            check(!pthread_join(children[i], NULL), "no end");
        usleep(1000);
    }
    return unused;
}

static void wait_for_a_word(void)
{
    char byte;
    ready();
    check(read(0, &byte, 1) == 1, "nobody says when");
}

static pthread_t begin_hosting(void)
{
    pthread_t hosting;
    wait_for_a_word();
    check(!pthread_create(&hosting, NULL, host, NULL), "no thread");
    return hosting;
}

static void wait_for_the_end(void)
{
    char byte;
    while (read(0, &byte, 1) != 0)
        ;
    pthread_mutex_lock(&mutex);
    done = 1;
    pthread_cond_broadcast(&ending);
    pthread_mutex_unlock(&mutex);
}

/* Threads that came before, and among them others that come and go. */
static void crowd(void)
{
    pthread_t threads[OLD], breeders[2];
    for (int i = 0; i < OLD; i++) {
        if (i == OLD / 3 || i == OLD / 2)
            check(!pthread_create(&breeders[i == OLD / 2], NULL, breeder, NULL), "no thread");
        check(!pthread_create(&threads[i], NULL, old, NULL), "no thread");
        usleep(1000);
    }
    ready();
    wait_for_the_end();
    for (int i = 0; i < OLD; i++)
        check(!pthread_join(threads[i], NULL), "no end");
    check(!pthread_join(breeders[0], NULL) && !pthread_join(breeders[1], NULL), "no end");
}

/* The process, when its first thread has ended. */
static void *rest(void *unused)
{
    ready();
    wait_for_the_end();
    printf("fine\n");
    exit(0);
    return unused;
}

static void end_the_first_thread(void)
{
    pthread_t other;
    check(!pthread_create(&other, NULL, rest, NULL), "no thread");
    pthread_exit(NULL);
}

int main(int argc, char **argv)
{
    pthread_t computing, hosting;
    if (argc != 2)
        return 2;
    check(!pthread_create(&computing, NULL, computer, NULL), "no thread");
    if (!strcmp(argv[1], "sleepers")) {
        hosting = begin_hosting();
        wait_for_the_end();
        check(!pthread_join(hosting, NULL), "no end");
    } else if (!strcmp(argv[1], "crowd")) {
        crowd();
    } else if (!strcmp(argv[1], "becomes")) {
        wait_for_a_word();
        execl("/proc/self/exe", "latecomers", "alone", NULL);
    } else if (!strcmp(argv[1], "headless")) {
        end_the_first_thread();
    } else if (!strcmp(argv[1], "alone")) {
        wait_for_the_end();
    } else {
        return 2;
    }
    check(!pthread_join(computing, NULL), "no end");
    printf("fine, %ld calls were interrupted\n", interrupted);
    return 0;
}
