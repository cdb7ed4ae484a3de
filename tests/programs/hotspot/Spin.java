/**
 * Ends in C and never comes back, so that a test may rewrite what lies below it.
 *
 * Truth: Spin.main@main > Spin.down@down*9 > Spin.down@bottom > Callback.down
 */
final class Spin {
    static int down(int n) {
        if (n == 0) {
            return Callback.down(-1); // @bottom
        }
        return down(n - 1) + 1; // @down
    }

    public static void main(String[] arguments) {
        System.load(arguments[0]);
        Burning.ready();
        down(9); // @main
    }
}
