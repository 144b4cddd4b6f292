"""Works for a share of a CPU, as much as a file says at the moment (0 to 100): strings, numbers and dictionaries."""
import os
import sys
import time

SLOT_S = 0.05


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def count_words(n):
    seen = {}
    for word in ' '.join(f'word{i % 97}' for i in range(n)).split():
        seen[word] = seen.get(word, 0) + 1
    return len(seen)


def level(path):
    with open(path) as file:
        return float(file.read() or 0)


def main(path):
    os.nice(10)
    while True:
        begin, until = time.monotonic(), time.process_time() + SLOT_S * level(path) / 100
        while time.process_time() < until:
            fibonacci(12)
            count_words(200)
        time.sleep(max(SLOT_S - (time.monotonic() - begin), SLOT_S / 50))


main(sys.argv[1])
