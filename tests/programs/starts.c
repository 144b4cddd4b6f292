/* Starts a program in one of the ways that the C library has, or is that program.
 *
 *   starts burn             uses CPU time for .3 s, prints its environment and ends with status 7
 *   starts WAY PROGRAM      has PROGRAM burn, and ends with its status
 *
 * "beside" and so on: while another thread waits for a shell.
 */
#define _GNU_SOURCE
#include "clock.h"

#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

static volatile unsigned long sink;

__attribute__((noinline)) static void starts_burns(void)
{
    for (unsigned long i = 0; i < 100000; i++)
        sink += i * 2654435761u;
}

static int burn(void)
{
    while (clock() < .3 * CLOCKS_PER_SEC)
        starts_burns();
    for (char **entry = environ; *entry != NULL; entry++)
        puts(*entry);
    return 7;
}

static void become(const char *way, char *program)
{
    char *const words[] = {program, "burn", NULL};
    char *const none[] = {NULL};
    char *name = strrchr(program, '/') + 1;
    if (strcmp(way, "execl") == 0)
        execl(program, program, "burn", NULL);
    else if (strcmp(way, "execl-many") == 0)
        execl(program, program, "burn", "2", "3", "4", "5", "6", "7", "8", "9", NULL);
    else if (strcmp(way, "execle") == 0)
        execle(program, program, "burn", "2", "3", "4", "5", "6", "7", "8", NULL, environ);
    else if (strcmp(way, "execlp") == 0)
        execlp(name, name, "burn", NULL);
    else if (strcmp(way, "execv") == 0)
        execv(program, words);
    else if (strcmp(way, "execvp") == 0)
        execvp(name, words);
    else if (strcmp(way, "execve") == 0 || strcmp(way, "vfork") == 0)
        execve(program, words, environ);
    else if (strcmp(way, "cleared") == 0)
        execve(program, words, none);
    else if (strcmp(way, "fexecve") == 0)
        fexecve(open(program, O_RDONLY | O_CLOEXEC), words, environ);
    die(way);
}

static int status_of(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

static int by_shell(const char *way, const char *program)
{
    char line[4096];
    snprintf(line, sizeof line, "%s burn", program);
    if (strcmp(way, "system") == 0)
        return status_of(system(line));
    FILE *pipe = popen(line, "r");
    if (pipe == NULL)
        die("popen");
    while (fgets(line, sizeof line, pipe) != NULL)
        fputs(line, stdout);
    return status_of(pclose(pipe));
}

static void *run_shell(void *unused)
{
    if (system("sleep 1") != 0)
        die("system");
    return unused;
}

static pid_t start_beside_shell(const char *way, char *program)
{
    char *const words[] = {program, "burn", NULL};
    pthread_t shell;
    pid_t child = 0;
    if (pthread_create(&shell, NULL, run_shell, NULL) != 0)
        die("pthread_create");
    usleep(200000);
    if (strcmp(way, "beside-fork") == 0) {
        if ((child = fork()) == 0) {
            usleep(1200000); /* until the shell has ended */
            exit(burn());
        }
    } else {
        if (strcmp(way, "beside-setenv") == 0)
            setenv("ADDED_MEANWHILE", "1", 1);
        if (posix_spawn(&child, program, NULL, NULL, words, environ) != 0)
            die("posix_spawn");
    }
    pthread_join(shell, NULL);
    return child;
}

int main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "burn") == 0)
        return burn();
    if (argc < 3) {
        fprintf(stderr, "starts burn | starts WAY PROGRAM\n");
        return 2;
    }
    char *way = argv[1], *program = argv[2];
    char *const words[] = {program, "burn", NULL};
    if (strcmp(way, "system") == 0 || strcmp(way, "popen") == 0)
        return by_shell(way, program);
    pid_t child = 0;
    if (strncmp(way, "beside", 6) == 0) {
        child = start_beside_shell(way, program);
    } else if (strcmp(way, "spawn") == 0) {
        if (posix_spawn(&child, program, NULL, NULL, words, environ) != 0)
            die("posix_spawn");
    } else if (strcmp(way, "spawnp") == 0) {
        if (posix_spawnp(&child, strrchr(program, '/') + 1, NULL, NULL, words, environ) != 0)
            die("posix_spawnp");
    } else {
        child = strcmp(way, "vfork") == 0 ? vfork() : fork();
        if (child == 0)
            become(way, program);
    }
    int status;
    if (waitpid(child, &status, 0) < 0)
        die("wait");
    return status_of(status);
}
