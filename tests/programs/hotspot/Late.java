import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;

/**
 * A class that is loaded anew again and again, by a class loader of its own each time.
 *
 * Truth: Late.main@main > Late.once@once > Made.run@made > Burning.burn
 * Truth: Late.main@main > Late.once@once > Made.run@made > ...
 * Truth: Late.main@main > Late.once@load > ...
 * Truth: Late.main@main > Late.once@new > Late$Loader.<init>@super > ...
 * Truth: Late.main@main > Late.once@load > Late$Loader.define@define > ...
 * Truth: Late.main@main > Late.once@make > ... > Made.<init>@* > ...
 */
final class Late {
    static final class Loader extends ClassLoader {
        Loader() {
            super(Late.class.getClassLoader()); // @super
        }

        Class<?> define(byte[] bytes) {
            return defineClass("Made", bytes, 0, bytes.length); // @define
        }
    }

    static byte[] bytes() throws IOException {
        try (InputStream in = Late.class.getResourceAsStream("Made.class")) {
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            for (int b = in.read(); b >= 0; b = in.read()) {
                out.write(b);
            }
            return out.toByteArray();
        }
    }

    @SuppressWarnings("deprecation")
    static void once(byte[] bytes) throws ReflectiveOperationException {
        Loader loader = new Loader(); // @new
        Class<?> type = loader.define(bytes); // @load
        Runnable made = (Runnable) type.newInstance(); // @make
        made.run(); // @once
    }

    public static void main(String[] arguments) throws Exception {
        byte[] bytes = bytes();
        Burning.ready();
        while (true) {
            once(bytes); // @main
        }
    }
}
