import java.io.IOException;
import java.util.Properties;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeHint;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.reader.SimpleStreamFormat;
import org.apache.flink.connector.file.src.reader.StreamFormat;
import org.apache.flink.core.fs.FSDataInputStream;
import org.apache.flink.core.fs.Path;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/** Two counts in Flink's DataStream: a KeyedProcessFunction with a ValueState twice, checkpointed exactly once. */
public final class FlinkCounts {
    private static final TypeInformation<Tuple3<String, String, byte[]>> ROW =
            TypeInformation.of(new TypeHint<Tuple3<String, String, byte[]>>() {});

    /** A file's rows, for Flink's own file source, which knows how to go on from a checkpoint. */
    static final class Format extends SimpleStreamFormat<Tuple3<String, String, byte[]>> {
        @Override
        public StreamFormat.Reader<Tuple3<String, String, byte[]>> createReader(
                Configuration configuration, FSDataInputStream stream) {
            Told.Rows rows = new Told.Rows(stream);
            return new StreamFormat.Reader<>() {
                @Override
                public Tuple3<String, String, byte[]> read() throws IOException {
                    return rows.next() ? Tuple3.of(rows.key(0), rows.key(1), rows.payload()) : null;
                }

                @Override
                public void close() throws IOException {
                    rows.close();
                }
            };
        }

        @Override
        public TypeInformation<Tuple3<String, String, byte[]>> getProducedType() {
            return ROW;
        }
    }

    /** Counts a key's rows and passes them on, unless it is the last; a timer at the end writes the count down. */
    static final class Count
            extends KeyedProcessFunction<String, Tuple3<String, String, byte[]>, Tuple3<String, String, byte[]>> {
        private final String work;
        private final String name;
        private final boolean last;
        private transient ValueState<Long> count;
        private transient Told.Counts totals;
        private transient Told.Passed passed;

        Count(String work, String name, boolean last) {
            this.work = work;
            this.name = name;
            this.last = last;
        }

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
            totals = new Told.Counts(work, name);
            passed = new Told.Passed(work);
        }

        @Override
        public void processElement(
                Tuple3<String, String, byte[]> row, Context context, Collector<Tuple3<String, String, byte[]>> out)
                throws Exception {
            Long before = count.value();
            if (before == null) {
                context.timerService().registerEventTimeTimer(Long.MAX_VALUE);
                before = 0L;
            }
            count.update(before + 1);
            if (last) {
                passed.add();
            } else {
                out.collect(row);
            }
        }

        @Override
        public void onTimer(long at, OnTimerContext context, Collector<Tuple3<String, String, byte[]>> out)
                throws Exception {
            if (last) {
                passed.note();
            }
            totals.add(context.getCurrentKey(), count.value());
        }
    }

    public static void main(String[] args) throws Exception {
        Properties order = Told.order(args[0]);
        String work = order.getProperty("work");
        Configuration settings = new Configuration();
        settings.setString("state.backend.type", order.getProperty("backend"));
        settings.setString("execution.checkpointing.incremental", "true");
        settings.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
        settings.setString("execution.checkpointing.interval", order.getProperty("checkpoint_seconds") + "s");
        settings.setString("execution.checkpointing.dir", "file://" + work + "/checkpoints");
        settings.setString("pipeline.object-reuse", "true");
        settings.setString("restart-strategy.type", "none"); // a failure shall be seen, not hidden by trying again
        settings.setString("rest.bind-address", "127.0.0.1");
        settings.setString("io.tmp.dirs", work);
        int workers = Integer.parseInt(order.getProperty("workers"));
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(workers, settings);
        Path[] files = order.getProperty("files").lines().map(Path::new).toArray(Path[]::new);
        FileSource<Tuple3<String, String, byte[]>> source =
                FileSource.forRecordStreamFormat(new Format(), files).build();
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "rows", ROW)
                .keyBy(row -> row.f0)
                .process(new Count(work, "A", false), ROW)
                .keyBy(row -> row.f1)
                .process(new Count(work, "B", true), ROW)
                .sinkTo(new DiscardingSink<>());
        env.execute("two counts");
    }
}
