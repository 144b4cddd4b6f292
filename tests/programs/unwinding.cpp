// Work in the midst of C++'s own unwinding, and in coroutines: `unwinding MODE CPU_SECONDS`.
#include <coroutine>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>

#include "clock.h"

#define APART __attribute__((noinline, noclone))

static volatile uint64_t state = 1;

extern "C" APART uint64_t leaf(uint64_t x)
{
    for (int i = 0; i < 400000; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        x ^= x >> 29;
    }
    return x;
}

struct Guard {
    APART ~Guard() { state = leaf(state) + 1; }
};

extern "C" APART void thrower() { throw std::runtime_error("known"); }
extern "C" APART void guarded()
{
    Guard guard;
    thrower();
}
extern "C" APART void catcher()
{
    try {
        thrower();
    } catch (const std::exception &) {
        state = leaf(state) + 1;
    }
}
extern "C" APART void destroyer()
{
    try {
        guarded();
    } catch (const std::exception &) {
        state = state + 1;
    }
}

struct Task {
    struct promise_type {
        Task get_return_object() { return { std::coroutine_handle<promise_type>::from_promise(*this) }; }
        std::suspend_always initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        void return_void() {}
        void unhandled_exception() { std::abort(); }
    };
    std::coroutine_handle<promise_type> handle;
};

static Task coroutine_body()
{
    for (;;) {
        state = leaf(state) + 1;
        co_await std::suspend_always {};
    }
}

static Task task {};
extern "C" APART void resumer()
{
    if (!task.handle)
        task = coroutine_body();
    task.handle.resume();
    state = state + 1;
}

int main(int count, char **words)
{
    if (count != 3)
        return 2;
    void (*work)() = strcmp(words[1], "catch") == 0 ? catcher : strcmp(words[1], "destructor") == 0 ? destroyer : resumer;
    while (rusage_s(RUSAGE_SELF) < atof(words[2]))
        work();
}
