// Works for so many seconds of CPU time: numbers, objects, closures, strings and regular expressions.
'use strict';

function fibonacci(n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

class Vector {
    constructor(x, y) {
        this.x = x;
        this.y = y;
    }
    plus(other) {
        return new Vector(this.x + other.x, this.y + other.y);
    }
}

function vectors(count) {
    let sum = new Vector(0, 0);
    for (let i = 0; i < count; i++) sum = sum.plus(new Vector(i, -i));
    return sum.x;
}

function words(count) {
    const text = Array.from({ length: count }, (_, i) => `word${i % 97}`).join(' ');
    const seen = new Map();
    for (const word of text.split(' ')) seen.set(word, (seen.get(word) || 0) + 1);
    return [...seen].sort((one, other) => other[1] - one[1]).length + text.replace(/d(\d)/g, '$1').length;
}

function work(seconds) {
    let done = 0;
    while (process.cpuUsage().user < seconds * 1e6) {
        done += fibonacci(20) + vectors(20000) + words(2000);
        done += JSON.parse(JSON.stringify({ done, list: [1, 2, 3] })).list.length;
    }
    return done;
}

console.log(work(Number(process.argv[2])));
