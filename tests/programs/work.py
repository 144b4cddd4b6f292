"""Works for so many seconds of CPU time: numbers, objects, closures, strings and regular expressions."""
import json
import re
import sys
import time


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


class Vector:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def plus(self, other):
        return Vector(self.x + other.x, self.y + other.y)


def vectors(count):
    total = Vector(0, 0)
    for i in range(count):
        total = total.plus(Vector(i, -i))
    return total.x


def words(count):
    text = ' '.join(f'word{i % 97}' for i in range(count))
    seen = {}
    for word in text.split():
        seen[word] = seen.get(word, 0) + 1
    most = sorted(seen.items(), key=lambda item: -item[1])
    return len(most) + len(re.sub(r'd(\d)', r'\1', text))


def work(seconds):
    done = 0
    while time.process_time() < seconds:
        done += fibonacci(15) + vectors(2000) + words(500)
        done += len(json.loads(json.dumps({'done': done, 'list': [1, 2, 3]}))['list'])
    return done


print(work(float(sys.argv[1])))
