/** Works for so many seconds: numbers, objects, strings and closures. */
import java.util.HashMap;
import java.util.Map;

public class Work {
    static long fibonacci(int n) {
        return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
    }

    record Vector(long x, long y) {
        Vector plus(Vector other) {
            return new Vector(x + other.x, y + other.y);
        }
    }

    static long vectors(int count) {
        Vector sum = new Vector(0, 0);
        for (int i = 0; i < count; i++) sum = sum.plus(new Vector(i, -i));
        return sum.x();
    }

    static long words(int count) {
        Map<String, Integer> seen = new HashMap<>();
        for (int i = 0; i < count; i++) seen.merge("word" + i % 97, 1, Integer::sum);
        return seen.values().stream().mapToLong(Integer::longValue).sum();
    }

    public static void main(String[] arguments) {
        long until = System.nanoTime() + (long) (Double.parseDouble(arguments[0]) * 1e9);
        long done = 0;
        while (System.nanoTime() < until) done += fibonacci(20) + vectors(20000) + words(2000);
        System.out.println(done);
    }
}
