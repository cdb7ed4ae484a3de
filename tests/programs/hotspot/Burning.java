/**
 * What every truth program here ends in: work in one method, and the way to say that it begins.
 *
 * How to read the `Truth:` lines of the programs: one right answer each, root first. `name@tag` is a frame of that
 * method, stopped at the line that ends in `// @tag`; `*n`: n times in a row; `~` before it: it was called by native
 * code, which lies between; `...`: frames of the JDK. `*` in a name stands for anything. The last method may be
 * anywhere in its lines, and any beginning of a chain is right as well, its last frame anywhere.
 */
public final class Burning {
    static volatile int sink;

    public static int burn(int n) {
        int x = n;
        for (int i = 0; i < n; i++) {
            x = x * 31 + (i ^ (x >>> 7)) % 13;
        }
        sink = x;
        return x;
    }

    static void ready() {
        System.out.println("ready");
        System.out.flush();
    }
}
