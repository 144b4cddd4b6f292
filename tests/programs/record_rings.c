/* Records what perf rings hold while a command runs, byte by byte, for the tests that replay it.
 *
 *   record_rings FOLDER SAMPLE_TYPE REGS_USER STACK_BYTES USER_CHAIN PERIOD_NS PAGES DRAIN_MS -- COMMAND [ARG...]
 *
 * FOLDER/ring.N has the records of CPU N. The command's process id is printed. A ring of few PAGES that is seldom drained
 * loses records.
 */
#define _GNU_SOURCE
#include "clock.h"

#include <linux/perf_event.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { MAX_CPUS = 64 };
static struct ring {
    struct perf_event_mmap_page *head;
    char *data;
    size_t bytes;
    FILE *out;
} rings[MAX_CPUS];

static void drain(struct ring *ring)
{
    uint64_t head = __atomic_load_n(&ring->head->data_head, __ATOMIC_ACQUIRE), tail = ring->head->data_tail;
    for (; tail < head; tail++)
        fputc(ring->data[tail & (ring->bytes - 1)], ring->out);
    __atomic_store_n(&ring->head->data_tail, tail, __ATOMIC_RELEASE);
}

static int open_ring(struct ring *ring, pid_t pid, int cpu, char **arg)
{
    struct perf_event_attr attr = {.size = sizeof attr, .type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_CPU_CLOCK};
    attr.sample_type = strtoull(arg[2], NULL, 10);
    attr.sample_regs_user = strtoull(arg[3], NULL, 10);
    attr.sample_stack_user = attr.sample_regs_user ? (uint32_t)atol(arg[4]) : 0;
    attr.exclude_callchain_user = !atoi(arg[5]);
    attr.sample_period = strtoull(arg[6], NULL, 10);
    attr.exclude_idle = attr.inherit = attr.disabled = attr.sample_id_all = 1;
    attr.mmap = attr.mmap2 = attr.comm = attr.comm_exec = attr.task = 1;
    attr.use_clockid = 1;
    attr.clockid = CLOCK_MONOTONIC;
    attr.watermark = 1;
    attr.wakeup_watermark = UINT32_MAX;
    int fd = (int)syscall(SYS_perf_event_open, &attr, pid, cpu, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0)
        return -1;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    ring->bytes = (size_t)atol(arg[7]) * page;
    ring->head = mmap(NULL, page + ring->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (ring->head == MAP_FAILED)
        die("mmap");
    ring->data = (char *)ring->head + page;
    char path[4096];
    snprintf(path, sizeof path, "%s/ring.%d", arg[1], cpu);
    if (!(ring->out = fopen(path, "w")))
        die(path);
    return fd;
}

int main(int argc, char **argv)
{
    int go[2], opened = 0;
    if (argc < 11 || strcmp(argv[9], "--") || pipe(go))
        return 2;
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0) {
        char byte;
        close(go[1]);
        if (read(go[0], &byte, 1) == 1)
            execv(argv[10], argv + 10);
        die(argv[10]);
    }
    for (int cpu = 0; cpu < MAX_CPUS; cpu++) {
        int fd = open_ring(&rings[opened], pid, cpu, argv);
        if (fd >= 0 && !ioctl(fd, PERF_EVENT_IOC_ENABLE, 0))
            opened++;
    }
    if (!opened)
        die("perf_event_open");
    if (write(go[1], "", 1) != 1)
        die("pipe");
    int status = 0;
    pid_t ended = 0;
    while (!ended) {
        usleep((useconds_t)atol(argv[8]) * 1000);
        ended = waitpid(pid, &status, WNOHANG);
        for (int i = 0; i < opened; i++)
            drain(&rings[i]);
    }
    for (int i = 0; i < opened; i++)
        fclose(rings[i].out);
    printf("%d\n", pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
