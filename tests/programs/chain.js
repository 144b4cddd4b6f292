// A chain of calls that is known beforehand, for so many seconds of CPU time.
'use strict';

function leaf(x) {
    for (let i = 0; i < 200000; i++) x = (Math.imul(x, 31) + i) | 0;
    return x;
}

function level2(x) {
    return leaf(x + 1) ^ 5;
}

function level1(x) {
    return level2(x + 1) + 7;
}

let state = 1;
while (process.cpuUsage().user < Number(process.argv[2]) * 1e6) state = level1(state);
