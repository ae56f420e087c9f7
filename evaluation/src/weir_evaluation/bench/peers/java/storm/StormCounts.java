import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.storm.Config;
import org.apache.storm.StormSubmitter;
import org.apache.storm.spout.SpoutOutputCollector;
import org.apache.storm.task.OutputCollector;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.topology.BoltDeclarer;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.TopologyBuilder;
import org.apache.storm.topology.base.BaseRichBolt;
import org.apache.storm.topology.base.BaseRichSpout;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Tuple;
import org.apache.storm.tuple.Values;

/** Two counts in Storm: maps in the memory of bolts; every row is acknowledged, and sent again where one is lost. */
public final class StormCounts {
    /** Reads its share of the files; when all its rows are acknowledged, it says so on the stream "end". */
    static final class Reader extends BaseRichSpout {
        private final String[] files;
        private transient SpoutOutputCollector out;
        private transient Map<Long, Values> pending;
        private transient Told.Rows rows;
        private int next;
        private int step;
        private long emitted;
        private boolean ended;

        Reader(String[] files) {
            this.files = files;
        }

        @Override
        public void open(Map<String, Object> config, TopologyContext context, SpoutOutputCollector collector) {
            next = context.getThisTaskIndex();
            step = context.getComponentTasks(context.getThisComponentId()).size();
            out = collector;
            pending = new HashMap<>();
        }

        @Override
        public void nextTuple() {
            try {
                while (rows == null || !rows.next()) {
                    if (rows != null) {
                        rows.close();
                        rows = null;
                    }
                    if (next >= files.length) {
                        if (pending.isEmpty() && !ended) {
                            ended = true;
                            out.emit("end", new Values());
                        }
                        return;
                    }
                    rows = new Told.Rows(Files.newInputStream(Path.of(files[next])));
                    next += step;
                }
                Values row = new Values(rows.key(0), rows.key(1), rows.payload());
                pending.put(++emitted, row);
                out.emit(row, emitted);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public void ack(Object number) {
            pending.remove(number);
        }

        @Override
        public void fail(Object number) {
            out.emit(pending.get(number), number);
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("k1", "k2", "payload"));
            declarer.declareStream("end", new Fields());
        }
    }

    /** Counts rows by a key and passes them on, unless it is the last; writes counts down when all readers ended. */
    static final class Count extends BaseRichBolt {
        private final String work;
        private final String name;
        private final int key;
        private final boolean last;
        private transient OutputCollector out;
        private transient Map<String, long[]> counts;
        private transient Told.Passed passed;
        private int readers;

        Count(String work, String name, int key, boolean last) {
            this.work = work;
            this.name = name;
            this.key = key;
            this.last = last;
        }

        @Override
        public void prepare(Map<String, Object> config, TopologyContext context, OutputCollector collector) {
            out = collector;
            counts = new HashMap<>();
            passed = new Told.Passed(work);
            readers = context.getComponentTasks("rows").size();
        }

        @Override
        public void execute(Tuple row) {
            if (row.getSourceStreamId().equals("end")) {
                if (--readers == 0) {
                    end();
                }
            } else {
                counts.computeIfAbsent(row.getString(key), absent -> new long[1])[0]++;
                if (last) {
                    passed.add();
                } else {
                    out.emit(row, row.getValues());
                }
            }
            out.ack(row);
        }

        private void end() {
            passed.note();
            Told.Counts totals = new Told.Counts(work, name);
            counts.forEach((key, count) -> totals.add(key, count[0]));
            try {
                Files.createTempFile(Path.of(work), "ended-", ".txt");
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            if (!last) {
                declarer.declare(new Fields("k1", "k2", "payload"));
            }
        }
    }

    private static void group(BoltDeclarer bolt, String grouping, String from, String field) {
        switch (grouping) {
            case "fields" -> bolt.fieldsGrouping(from, new Fields(field));
            case "partial" -> bolt.partialKeyGrouping(from, new Fields(field));
            case "local" -> bolt.localOrShuffleGrouping(from);
            default -> throw new IllegalArgumentException(grouping);
        }
        bolt.allGrouping("rows", "end");
    }

    public static void main(String[] args) throws Exception {
        Properties order = Told.order(args[0]);
        String work = order.getProperty("work");
        String grouping = order.getProperty("grouping");
        int workers = Integer.parseInt(order.getProperty("workers"));
        TopologyBuilder topology = new TopologyBuilder();
        topology.setSpout("rows", new Reader(order.getProperty("files").split("\n")), workers);
        group(topology.setBolt("A", new Count(work, "A", 0, false), workers), grouping, "rows", "k1");
        group(topology.setBolt("B", new Count(work, "B", 1, true), workers), grouping, "A", "k2");
        Config config = new Config();
        config.setNumWorkers(workers);
        config.setNumAckers(workers);
        config.setMaxSpoutPending(Integer.parseInt(order.getProperty("pending")));
        StormSubmitter.submitTopology("two-counts", config, topology.createTopology());
    }
}
