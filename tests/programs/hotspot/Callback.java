/**
 * Java, C, Java, C, Java: a native method calls back, twice.
 *
 * Truth: Callback.main@main > Callback.down@* > ~Callback.middle@middle > Callback.deeper@deeper > Callback.down@* > ~Callback.bottom@bottom > Burning.burn
 */
final class Callback {
    /** Calls `middle` (depth 0) or `bottom` (depth 1) from C, through two functions of its own. */
    static native int down(int depth);

    static int middle(int x) {
        int y = x + 1;
        return deeper(y); // @middle
    }

    static int deeper(int x) {
        return down(1) + x; // @deeper
    }

    static int bottom(int x) {
        return Burning.burn(3000) + x; // @bottom
    }

    public static void main(String[] arguments) {
        System.load(arguments[0]);
        Burning.ready();
        while (true) {
            down(0); // @main
        }
    }
}
