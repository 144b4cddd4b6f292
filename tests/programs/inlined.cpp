// The eight functions of mix.c, each inlined into its caller: the truth is by the inlined function's name.
//
//   inlined [--cpu SECONDS | --calls N] [--depth D] [--seed S] [--time-each ROUNDS] [--out FILE]
#include "clock.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace truth {

constexpr int functions = 8;
constexpr double ratio[functions] = {.40, .25, .15, .08, .05, .04, .02, .01};

template <int Which> [[gnu::always_inline]] inline uint64_t work(uint64_t x)
{
    for (long i = 0; i < 20000; i++) {
        x = x * 6364136223846793005u + (11 + Which);
        __asm__ volatile("" : "+r"(x));
    }
    return x;
}

struct Done {
    uint64_t calls[functions] = {};
    uint64_t work_ns = 0;
};

template <class Order> [[gnu::noinline]] uint64_t run_calls(const Order &order, Done &done)
{
    uint64_t start = now_ns(CLOCK_THREAD_CPUTIME_ID), x = 1;
    for (int f : order) {
        switch (f) {
        case 0: x = work<0>(x); break;
        case 1: x = work<1>(x); break;
        case 2: x = work<2>(x); break;
        case 3: x = work<3>(x); break;
        case 4: x = work<4>(x); break;
        case 5: x = work<5>(x); break;
        case 6: x = work<6>(x); break;
        default: x = work<7>(x); break;
        }
        done.calls[f]++;
    }
    done.work_ns += now_ns(CLOCK_THREAD_CPUTIME_ID) - start;
    return x;
}

std::vector<uint8_t> shuffled_order(long calls, std::mt19937_64 &random)
{
    std::vector<uint8_t> order;
    for (int f = 0; f < functions; f++)
        order.insert(order.end(), static_cast<size_t>(ratio[f] * static_cast<double>(calls) + .5), static_cast<uint8_t>(f));
    for (size_t i = order.size() - 1; i > 0; i--)
        std::swap(order[i], order[random() % (i + 1)]);
    return order;
}

struct Program {
    long calls = 0, depth = 5;
    double cpu_s = 1;
    std::mt19937_64 random{1};
    Done done;
    volatile uint64_t sink = 0;

    void run(long count) { sink = run_calls(shuffled_order(count, random), done); }

    // Median ns per call of each function: rounds of ten calls each, in turn.
    void time_each(long rounds)
    {
        std::vector<uint64_t> ns[functions];
        for (long r = 0; r < rounds; r++)
            for (int f = 0; f < functions; f++) {
                Done ten;
                sink = run_calls(std::vector<uint8_t>(10, static_cast<uint8_t>(f)), ten);
                ns[f].push_back(ten.work_ns);
            }
        printf("{\"median_ns_per_call\":[");
        for (int f = 0; f < functions; f++) {
            std::sort(ns[f].begin(), ns[f].end());
            printf("%s%.1f", f ? "," : "", static_cast<double>(ns[f][ns[f].size() / 2]) / 10);
        }
        printf("]}\n");
    }

    [[gnu::noinline]] void bottom()
    {
        if (!calls) {
            run(500);
            calls = static_cast<long>(cpu_s * 1e9 / (static_cast<double>(done.work_ns) / 500) / 100) * 100;
        }
        run(calls);
    }

    [[gnu::noinline, gnu::noclone]] long descend(long left)
    {
        if (left == 0) {
            bottom();
            return 0;
        }
        long below = descend(left - 1);
        __asm__ volatile("" : "+r"(below)); // neither a tail call nor a loop
        return below + 1;
    }
};

} // namespace truth

int main(int argc, char **argv)
{
    uint64_t started = now_ns(CLOCK_MONOTONIC);
    truth::Program program;
    const char *out = nullptr;
    long rounds = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        std::string key = argv[i];
        if (key == "--calls") program.calls = atol(argv[i + 1]);
        else if (key == "--cpu") program.cpu_s = atof(argv[i + 1]);
        else if (key == "--depth") program.depth = atol(argv[i + 1]);
        else if (key == "--seed") program.random.seed(strtoul(argv[i + 1], nullptr, 10));
        else if (key == "--time-each") rounds = atol(argv[i + 1]);
        else if (key == "--out") out = argv[i + 1];
        else return 2;
    }
    if (rounds) {
        program.time_each(rounds);
        return 0;
    }
    program.descend(program.depth);
    FILE *to = out ? fopen(out, "w") : stdout;
    if (!to)
        die(out);
    fprintf(to, "{\"calls\":{");
    for (int f = 0; f < truth::functions; f++)
        fprintf(to, "%s\"truth::work<%d>\":%lu", f ? "," : "", f, static_cast<unsigned long>(program.done.calls[f]));
    fprintf(to, "},\"work_cpu_s\":%.9f,\"cpu_s\":%.6f,\"wall_s\":%.6f,\"pid\":%d}\n",
            1e-9 * static_cast<double>(program.done.work_ns), rusage_s(RUSAGE_SELF),
            1e-9 * static_cast<double>(now_ns(CLOCK_MONOTONIC) - started), static_cast<int>(getpid()));
    fclose(to);
}
