/** A chain of calls that is known beforehand, for so many seconds. */
public class Chain {
    static long leaf(long x) {
        for (int i = 0; i < 400000; i++) {
            x = x * 6364136223846793005L + 1442695040888963407L;
            x ^= x >>> 29;
        }
        return x;
    }

    static long level2(long x) {
        return leaf(x + 1) ^ 5;
    }

    static long level1(long x) {
        return level2(x + 1) + 7;
    }

    static long work(long until) {
        long state = 1;
        while (System.nanoTime() < until) state = level1(state);
        return state;
    }

    public static void main(String[] arguments) {
        System.out.println(work(System.nanoTime() + (long) (Double.parseDouble(arguments[0]) * 1e9)));
    }
}
