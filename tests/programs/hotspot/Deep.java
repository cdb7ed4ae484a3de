/**
 * Deep recursion through two methods.
 *
 * Truth: Deep.main@main > Deep.outer@outer > Deep.odd@odd > Deep.even@even > Deep.odd@odd > Deep.even@even > Deep.odd@odd > Deep.even@even > Deep.odd@odd > Deep.even@bottom > Deep.last@last*40 > Burning.burn
 */
final class Deep {
    static int odd(int n) {
        int x = 1;
        return x + even(n - 1); // @odd
    }

    static int even(int n) {
        if (n == 0) {
            return last(39); // @bottom
        }
        return odd(n - 1) + 1; // @even
    }

    static int last(int n) {
        return n == 0 ? Burning.burn(3000) : 1 + last(n - 1); // @last
    }

    static int outer() {
        return odd(7); // @outer
    }

    public static void main(String[] arguments) {
        Burning.ready();
        while (true) {
            outer(); // @main
        }
    }
}
