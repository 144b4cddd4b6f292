#!/usr/bin/env python3
"""What twins.c does, with work that nobody here wrote: an interpreter, a compressor and a database, as real programs
use their caches.

    twins.py objects|compress|database --iterations N [--on CPU] --out FILE

objects   documents to text and back
compress  zlib
database  ranges of an index of SQLite's, in memory

Other options of twins.c are taken and mean nothing here. It prints the process to be sampled, goes on until its input ends, and
writes one JSON line: what each turn took (ns of CPU time) in the twin and in the process, and when it was over.
"""

import json
import os
import random
import select
import sqlite3
import sys
import time
import zlib

STEPS_PER_ITERATION = 1e-3  # one iteration of twins.c takes a nanosecond or so


def objects():
    choose = random.Random(1)
    documents = [{str(i): [choose.random() for _ in range(20)], "text": "x" * choose.randrange(100)} for i in range(3000)]

    def work(step):
        json.loads(json.dumps(documents[step * 7 % len(documents)]))

    return work


def compress():
    choose = random.Random(1)
    text = "".join(choose.choice("abcde fghij\n") * choose.randrange(1, 4) for _ in range(2_000_000)).encode()

    def work(step):
        at = step * 997 % (len(text) - 1000)
        zlib.compress(text[at : at + 1000], 6)

    return work


def database():
    choose = random.Random(1)
    rows = 200_000
    connection = sqlite3.connect(":memory:")
    connection.execute("create table items (id integer primary key, name text, weight real)")
    items = [(i, "n%06d" % choose.randrange(1_000_000), choose.random()) for i in range(rows)]
    connection.executemany("insert into items values (?, ?, ?)", items)
    connection.execute("create index names on items (name)")
    query = "select sum(weight) from items where name between ? and ?"

    def work(step):
        at = step * 7919 % 999_990
        connection.execute(query, ("n%06d" % at, "n%06d" % (at + 9))).fetchone()

    return work


KINDS = {"objects": objects, "compress": compress, "database": database}


def main():
    kind, *words = sys.argv[1:] or [""]
    options = dict(zip(words[::2], words[1::2]))
    if kind not in KINDS or "--iterations" not in options or "--out" not in options:
        sys.exit("twins.py objects|compress|database --iterations N [--on CPU] --out FILE")
    if int(options.get("--on", -1)) >= 0:
        os.sched_setaffinity(0, {int(options["--on"])})
    steps = max(1, round(int(options["--iterations"]) * STEPS_PER_ITERATION))
    work = KINDS[kind]()
    times = []

    def take_turn():
        first = len(times) * steps
        before = time.process_time_ns()
        for step in range(first, first + steps):
            work(step)
        times.append(time.process_time_ns() - before)

    (process_in, to_process), (twin_in, to_twin) = os.pipe(), os.pipe()
    process = os.fork()
    if process == 0:
        os.close(to_process)
        ends = []
        while os.read(process_in, 1) == b"x":
            take_turn()
            ends.append(time.monotonic_ns())
            os.write(to_twin, b"x")
        os.write(to_twin, json.dumps([times, ends]).encode())
        os._exit(0)
    os.close(to_twin)
    print(process, flush=True)
    while True:
        take_turn()
        over = bool(select.select([0], [], [], 0)[0])
        os.write(to_process, b"x")
        if os.read(twin_in, 1) != b"x":
            sys.exit("the process is gone")
        if over:
            break
    os.close(to_process)
    with os.fdopen(twin_in, "rb") as rest:
        process_times, ends = json.loads(rest.read())
    os.waitpid(process, 0)
    with open(options["--out"], "w", encoding="ascii") as out:
        json.dump({"turns": list(zip(times, process_times, ends))}, out)


main()
