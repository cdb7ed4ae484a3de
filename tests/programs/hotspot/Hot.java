/**
 * Small methods in a hot loop, which the compilers inline into each other; virtual and interface calls of many classes.
 *
 * Truth: Hot.main@main > Hot.loop@loop > Hot.outer@outer > Hot.middle@middle > Hot.inner
 * Truth: Hot.main@main > Hot.loop@shapes > Hot.total@virtual > Hot$Square.area@square > Hot.inner
 * Truth: Hot.main@main > Hot.loop@shapes > Hot.total@virtual > Hot$Circle.area@circle > Hot.inner
 * Truth: Hot.main@main > Hot.loop@shapes > Hot.total@virtual > Hot$Line.area@line > Hot.inner
 * Truth: Hot.main@main > Hot.loop@shapes > Hot.total@interface > Hot$Square.scale@scaleSquare > Hot.inner
 * Truth: Hot.main@main > Hot.loop@shapes > Hot.total@interface > Hot$Circle.scale@scaleCircle > Hot.inner
 * Truth: Hot.main@main > Hot.loop@shapes > Hot.total@interface > Hot$Line.scale@scaleLine > Hot.inner
 */
final class Hot {
    interface Scaled {
        int scale(int x);
    }

    abstract static class Shape implements Scaled {
        abstract int area(int x);
    }

    static final class Square extends Shape {
        int area(int x) {
            return inner(x) + 1; // @square
        }

        public int scale(int x) {
            return inner(x) + 2; // @scaleSquare
        }
    }

    static final class Circle extends Shape {
        int area(int x) {
            return inner(x) + 3; // @circle
        }

        public int scale(int x) {
            return inner(x) + 4; // @scaleCircle
        }
    }

    static final class Line extends Shape {
        int area(int x) {
            return inner(x) + 5; // @line
        }

        public int scale(int x) {
            return inner(x) + 6; // @scaleLine
        }
    }

    static int inner(int x) {
        int y = x;
        for (int i = 0; i < 20; i++) {
            y = y * 31 + (i ^ (y >>> 7)) % 13;
        }
        return y;
    }

    static int middle(int x) {
        int y = x + 1;
        return inner(y); // @middle
    }

    static int outer(int x) {
        int y = x;
        y += middle(y); // @outer
        return y;
    }

    static int total(Shape[] shapes, Scaled[] scaled, int x) {
        int y = x;
        for (int i = 0; i < shapes.length; i++) {
            y += shapes[i].area(y); // @virtual
            y += scaled[i].scale(y); // @interface
        }
        return y;
    }

    static int loop(Shape[] shapes, Scaled[] scaled) {
        int x = 0;
        for (int i = 0; i < 1000; i++) {
            x = outer(x); // @loop
            x = total(shapes, scaled, x); // @shapes
        }
        return x;
    }

    public static void main(String[] arguments) {
        Shape[] shapes = {new Square(), new Circle(), new Line()};
        Scaled[] scaled = {new Line(), new Square(), new Circle()};
        Burning.ready();
        while (true) {
            Burning.sink = loop(shapes, scaled); // @main
        }
    }
}
