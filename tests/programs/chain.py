"""A chain of calls that is known beforehand, for so many seconds of CPU time."""
import sys
import time


def leaf(x):
    for i in range(5000):
        x = (x * 31 + i) % 1000003
    return x


def level2(x):
    return leaf(x + 1) ^ 5


def level1(x):
    return level2(x + 1) + 7


state = 1
while time.process_time() < float(sys.argv[1]):
    state = level1(state)
