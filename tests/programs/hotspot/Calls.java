/**
 * Nothing but calls and returns, through two methods in turn: every leaf is a prologue, an epilogue or an adapter.
 *
 * Truth: Calls.main@main > Calls.odd@odd > Calls.even@even > Calls.odd@odd > Calls.even@even > Calls.odd@odd > Calls.even@even > Calls.odd@odd > Calls.even@even > Calls.odd@odd > Calls.even
 */
final class Calls {
    static long odd(int n, long a, long b, long c, long d, long e, long f, long g, int[] h) {
        long x = a + g;
        return x + even(n - 1, h, b); // @odd
    }

    static long even(int n, int[] h, long a) {
        if (n == 0) {
            return a + h.length;
        }
        return odd(n - 1, a, a, a, a, a, a, a, h); // @even
    }

    public static void main(String[] arguments) {
        int[] h = {1, 2, 3};
        Burning.ready();
        while (true) {
            odd(9, 1, 2, 3, 4, 5, 6, 7, h); // @main
        }
    }
}
