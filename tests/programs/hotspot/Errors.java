/**
 * Exceptions thrown through several frames and caught; work before, in handlers and behind.
 *
 * Truth: Errors.main@main > Errors.guard@guard > Errors.thrower@thrower*8 > Errors.thrower@bottom > Errors.fail@fail > Burning.burn
 * Truth: Errors.main@main > Errors.guard@guard > Errors.thrower@thrower*8 > Errors.thrower@bottom > Errors.fail@throw > ...
 * Truth: Errors.main@main > Errors.guard@caught > Burning.burn
 * Truth: Errors.main@main > Errors.guard@finally > Burning.burn
 */
final class Errors {
    static int thrower(int n) {
        if (n == 0) {
            return fail(); // @bottom
        }
        return thrower(n - 1) + 1; // @thrower
    }

    static int fail() {
        Burning.burn(2000); // @fail
        throw new IllegalStateException("expected"); // @throw
    }

    static int guard() {
        try {
            return thrower(8); // @guard
        } catch (IllegalStateException expected) {
            return Burning.burn(2000); // @caught
        } finally {
            Burning.burn(2000); // @finally
        }
    }

    public static void main(String[] arguments) {
        Burning.ready();
        while (true) {
            guard(); // @main
        }
    }
}
