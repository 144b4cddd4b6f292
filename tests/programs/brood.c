/* Starts many programs that live briefly, some at once, each program in turn, and writes how many have ended to a file.
 *
 *   brood COUNT AT_ONCE MILLISECONDS PROGRESS_FILE PROGRAM...
 */
#include "clock.h"

#include <fcntl.h>
#include <sys/wait.h>

static void start(const char *program, char *ms)
{
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        char *const words[] = {(char *)program, ms, NULL};
        execv(program, words);
        die(program);
    }
}

static void wait_for_one(void)
{
    int status;
    if (wait(&status) < 0)
        die("wait");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "a program failed\n");
        exit(4);
    }
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "brood COUNT AT_ONCE MILLISECONDS PROGRESS_FILE PROGRAM...\n");
        return 2;
    }
    long count = atol(argv[1]), at_once = atol(argv[2]);
    int programs = argc - 5, progress = open(argv[4], O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (progress < 0)
        die(argv[4]);
    for (long i = 0; i < count; i++) {
        if (i >= at_once)
            wait_for_one();
        start(argv[5 + i % programs], argv[3]);
        char text[32];
        int len = snprintf(text, sizeof text, "%ld\n", i + 1);
        if (pwrite(progress, text, len, 0) != len)
            die("write");
    }
    for (long i = count < at_once ? count : at_once; i > 0; i--)
        wait_for_one();
    return 0;
}
