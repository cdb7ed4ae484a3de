/**
 * Four threads, each with a chain of its own.
 *
 * Truth: Threads.main
 * Truth: ~... > Threads$One.run@one > Threads.left@left > Burning.burn
 * Truth: ~... > Threads$Two.run@two > Threads.right@right > Burning.burn
 */
final class Threads {
    static final class One extends Thread {
        @Override
        public void run() {
            while (true) {
                left(2000); // @one
            }
        }
    }

    static final class Two implements Runnable {
        @Override
        public void run() {
            while (true) {
                right(1000); // @two
            }
        }
    }

    static int left(int n) {
        return Burning.burn(n) + 1; // @left
    }

    static int right(int n) {
        return Burning.burn(n) + 2; // @right
    }

    public static void main(String[] arguments) throws InterruptedException {
        for (int i = 0; i < 2; i++) {
            new One().start();
            new Thread(new Two()).start();
        }
        Burning.ready();
        Thread.sleep(Long.MAX_VALUE);
    }
}
