/** What Late.java loads. */
public final class Made implements Runnable {
    @Override
    public void run() {
        for (int i = 0; i < 300; i++) {
            Burning.burn(1000); // @made
        }
    }
}
