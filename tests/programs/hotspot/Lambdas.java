import java.util.function.IntUnaryOperator;

/**
 * Lambdas and method references, called through an interface.
 *
 * Truth: Lambdas.main@main > Lambdas.apply@apply > Lambdas$$Lambda*.applyAsInt@* > Lambdas.lambda$main$0@first > Burning.burn
 * Truth: Lambdas.main@main > Lambdas.apply@apply > Lambdas$$Lambda*.applyAsInt@* > Lambdas.lambda$main$1@second > Burning.burn
 * Truth: Lambdas.main@main > Lambdas.apply@apply > Lambdas$$Lambda*.applyAsInt@* > Lambdas.named@named > Burning.burn
 */
final class Lambdas {
    static int named(int x) {
        return Burning.burn(x & 1023) + 3; // @named
    }

    static int apply(IntUnaryOperator[] operators, int x) {
        int y = x;
        for (IntUnaryOperator operator : operators) {
            y = operator.applyAsInt(y); // @apply
        }
        return y;
    }

    public static void main(String[] arguments) {
        IntUnaryOperator[] operators = {
            x -> Burning.burn(x & 1023) + 1, // @first
            x -> Burning.burn(x & 1023) + 2, // @second
            Lambdas::named,
        };
        Burning.ready();
        int x = 1000;
        while (true) {
            x = apply(operators, x) | 512; // @main
        }
    }
}
