import java.io.Closeable;
import java.io.DataInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Properties;
import java.util.UUID;

/** What told.py is for Python: the order, notes of rows that are through, counts; and the rows themselves. */
public final class Told {
    private static final int EVERY = 1000;

    private Told() {}

    /** The order: work, workers, rows, files (one per line), and the peer's options. */
    public static Properties order(String path) throws IOException {
        Properties order = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(path))) {
            order.load(reader);
        }
        return order;
    }

    private static FileOutputStream ownFile(String work, String kind) {
        try {
            return new FileOutputStream(work + "/" + kind + "-" + UUID.randomUUID() + ".txt");
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static void write(FileOutputStream file, String line) {
        try {
            file.write(line.getBytes(StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Notes when how many rows were through the last operator, for one instance of it. */
    public static final class Passed {
        private final FileOutputStream file;
        private int rows;

        public Passed(String work) {
            file = ownFile(work, "passed");
        }

        public void add() {
            if (++rows >= EVERY) {
                note();
            }
        }

        /** Writes down what was added since the last time; nanoTime is the clock of time.monotonic(). */
        public void note() {
            if (rows > 0) {
                write(file, System.nanoTime() / 1e9 + " " + rows + "\n");
                rows = 0;
            }
        }
    }

    /** The final counts of an operator, or of one instance of it. */
    public static final class Counts {
        private final FileOutputStream file;

        public Counts(String work, String operator) {
            file = ownFile(work, "counts-" + operator);
        }

        public void add(String key, long count) {
            write(file, key + " " + count + "\n");
        }
    }

    /**
     * The rows of a file that jvm.py has made of a Parquet file. A block is the number of rows, then three columns,
     * each as Arrow has them: the ends of the values, and the values, one behind the other.
     */
    public static final class Rows implements Closeable {
        private final DataInputStream in;
        private final int[][] ends = new int[3][];
        private final byte[][] values = new byte[3][];
        private int row = -1;
        private int rows;

        public Rows(InputStream in) {
            this.in = new DataInputStream(in);
        }

        /** Goes to the next row; false when there is none. */
        public boolean next() throws IOException {
            if (++row < rows) {
                return true;
            }
            byte[] head = in.readNBytes(4);
            if (head.length == 0) {
                return false;
            }
            rows = little(head).getInt();
            row = 0;
            for (int column = 0; column < 3; column++) {
                ends[column] = new int[rows + 1];
                little(in.readNBytes(4 * (rows + 1))).asIntBuffer().get(ends[column]);
                int size = ends[column][rows];
                values[column] = in.readNBytes(size);
                if (values[column].length < size) {
                    throw new IOException("a block is cut off");
                }
            }
            return true;
        }

        private static ByteBuffer little(byte[] bytes) {
            return ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
        }

        public String key(int column) {
            int begin = ends[column][row];
            return new String(values[column], begin, ends[column][row + 1] - begin, StandardCharsets.ISO_8859_1);
        }

        public byte[] payload() {
            return Arrays.copyOfRange(values[2], ends[2][row], ends[2][row + 1]);
        }

        @Override
        public void close() throws IOException {
            in.close();
        }
    }
}
