/**
 * One call that never returns: its loop is compiled while it runs, and its frame replaced (OSR).
 *
 * Truth: Replaced.main@main > Replaced.forever@call > Replaced.step@step > Burning.burn
 */
final class Replaced {
    static int step(int x) {
        return Burning.burn(x & 1023) + 1; // @step
    }

    static int forever(int x) {
        int y = x;
        while (true) {
            y = step(y); // @call
        }
    }

    public static void main(String[] arguments) {
        Burning.ready();
        forever(1000); // @main
    }
}
