import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/**
 * Many methods: classes that are written here, 200 methods each, all of them called in turn.
 *
 * Arguments: the C library of the others, the number of classes.
 *
 * Truth: Many.main@main > Many.turn@turn > Many$Of*.run@* > Many$Of*.m*
 * Truth: Many.main@main > Many.turn@next > ...
 */
final class Many {
    private static final int METHODS = 200;

    /** Defines what it is told to. */
    private static final class Loader extends ClassLoader {
        Class<?> define(String name, byte[] bytes) {
            return defineClass(name, bytes, 0, bytes.length);
        }
    }

    /** A class file: `static int m0(int)` to `m199`, each of which multiplies 31 times, and `run()`, which calls them all. */
    static byte[] classFile(String name) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        out.writeInt(0xCAFEBABE);
        out.writeInt(49); // Java 5: no stack maps
        int methodRefs = 14 + METHODS; // index of the first Methodref
        out.writeShort(methodRefs + 2 * METHODS);
        utf8(out, name); // 1
        out.writeByte(7); // 2: this class
        out.writeShort(1);
        utf8(out, "java/lang/Object"); // 3
        out.writeByte(7); // 4
        out.writeShort(3);
        utf8(out, "java/lang/Runnable"); // 5
        out.writeByte(7); // 6
        out.writeShort(5);
        utf8(out, "Code"); // 7
        utf8(out, "(I)I"); // 8
        utf8(out, "()V"); // 9
        utf8(out, "run"); // 10
        utf8(out, "<init>"); // 11
        out.writeByte(12); // 12: <init>()V
        out.writeShort(11);
        out.writeShort(9);
        out.writeByte(10); // 13: Object.<init>
        out.writeShort(4);
        out.writeShort(12);
        for (int i = 0; i < METHODS; i++) {
            utf8(out, "m" + i); // 14 + i
        }
        for (int i = 0; i < METHODS; i++) {
            out.writeByte(10); // Methodref, then its NameAndType
            out.writeShort(2);
            out.writeShort(methodRefs + 2 * i + 1);
            out.writeByte(12);
            out.writeShort(14 + i);
            out.writeShort(8);
        }
        out.writeShort(0x21);
        out.writeShort(2);
        out.writeShort(4);
        out.writeShort(1);
        out.writeShort(6);
        out.writeShort(0);
        out.writeShort(METHODS + 2);
        code(out, 1, 11, 9, 1, 1, new byte[] {0x2A, (byte) 0xB7, 0, 13, (byte) 0xB1});
        ByteArrayOutputStream run = new ByteArrayOutputStream();
        for (int i = 0; i < METHODS; i++) {
            int ref = methodRefs + 2 * i;
            run.write(new byte[] {0x10, 7, (byte) 0xB8, (byte) (ref >> 8), (byte) ref, 0x57});
        }
        run.write(0xB1);
        code(out, 1, 10, 9, 1, 1, run.toByteArray());
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        body.write(0x1A); // iload_0
        for (int i = 0; i < 31; i++) {
            body.write(new byte[] {0x10, 31, 0x68, 0x1A, 0x60}); // x * 31 + n
        }
        body.write(0xAC);
        for (int i = 0; i < METHODS; i++) {
            code(out, 9, 14 + i, 8, 2, 1, body.toByteArray());
        }
        out.writeShort(0);
        return bytes.toByteArray();
    }

    private static void utf8(DataOutputStream out, String text) throws IOException {
        out.writeByte(1);
        out.writeUTF(text);
    }

    private static void code(
            DataOutputStream out, int access, int name, int type, int stack, int locals, byte[] body)
            throws IOException {
        out.writeShort(access);
        out.writeShort(name);
        out.writeShort(type);
        out.writeShort(1);
        out.writeShort(7);
        out.writeInt(12 + body.length);
        out.writeShort(stack);
        out.writeShort(locals);
        out.writeInt(body.length);
        out.write(body);
        out.writeShort(0);
        out.writeShort(0);
    }

    static void turn(List<Runnable> classes) {
        for (Runnable one : classes) { // @next
            one.run(); // @turn
        }
    }

    public static void main(String[] arguments) throws Exception {
        List<Runnable> classes = new ArrayList<>();
        Loader loader = new Loader();
        for (int i = 0; i < Integer.parseInt(arguments[1]); i++) {
            Class<?> type = loader.define("Many$Of" + i, classFile("Many$Of" + i));
            classes.add((Runnable) type.getConstructor().newInstance());
        }
        for (int i = 0; i < 3; i++) {
            turn(classes);
        }
        Burning.ready();
        while (true) {
            turn(classes); // @main
        }
    }
}
