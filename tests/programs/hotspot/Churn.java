import java.util.ArrayList;
import java.util.List;

/**
 * Makes objects and forgets them, so that collectors are always at work.
 *
 * Truth: Churn.main@main > Churn.turn@turn > Churn.link@link*12 > Churn.link@bottom > Churn.fill@add > ...
 * Truth: Churn.main@main > Churn.turn@turn > Churn.link@link*12 > Churn.link@bottom > Churn.fill@new > Churn$Node.<init>@super > ...
 * Truth: Churn.main@main > Churn.turn@turn > Churn.link@link*12 > Churn.link@bottom > Churn.fill@list > ...
 */
final class Churn {
    private static final class Node {
        final byte[] bytes;

        Node(int size) {
            super(); // @super
            bytes = new byte[size];
        }
    }

    static int fill(int n) {
        List<Node> nodes = new ArrayList<>(); // @list
        for (int i = 0; i < n; i++) {
            Node node = new Node(i & 255); // @new
            nodes.add(node); // @add
        }
        return nodes.size();
    }

    static int link(int n) {
        return n == 0
                ? fill(3000) // @bottom
                : link(n - 1) + 1; // @link
    }

    static int turn() {
        return link(12); // @turn
    }

    public static void main(String[] arguments) {
        Burning.ready();
        while (true) {
            Burning.sink = turn(); // @main
        }
    }
}
