import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.Stores;

/** Two counts in Kafka Streams: two repartitions, a store behind each, all in transactions (exactly_once_v2). */
public final class KafkaStreamsCounts {
    private static final AtomicLong THROUGH = new AtomicLong();
    private static final List<Told.Passed> NOTES = new CopyOnWriteArrayList<>();

    record Row(String first, String second, byte[] payload) {}

    /** The lengths of both keys, the keys, the payload. */
    private static final Serde<Row> ROW = Serdes.serdeFrom(
            (topic, row) -> {
                byte[] first = row.first.getBytes(StandardCharsets.ISO_8859_1);
                byte[] second = row.second.getBytes(StandardCharsets.ISO_8859_1);
                return ByteBuffer.allocate(2 + first.length + second.length + row.payload.length)
                        .put((byte) first.length)
                        .put((byte) second.length)
                        .put(first)
                        .put(second)
                        .put(row.payload)
                        .array();
            },
            (topic, bytes) -> {
                int end = 2 + bytes[0];
                return new Row(
                        new String(bytes, 2, bytes[0], StandardCharsets.ISO_8859_1),
                        new String(bytes, end, bytes[1], StandardCharsets.ISO_8859_1),
                        Arrays.copyOfRange(bytes, end + bytes[1], bytes.length));
            });

    /** Counts a key's rows and passes them on, unless it is the last. */
    static final class Count extends ContextualProcessor<String, Row, String, Row> {
        private final String name;
        private final Told.Passed passed;
        private KeyValueStore<String, Long> counts;

        Count(String name, Told.Passed passed) {
            this.name = name;
            this.passed = passed;
        }

        @Override
        public void init(ProcessorContext<String, Row> context) {
            super.init(context);
            counts = context.getStateStore(name);
        }

        @Override
        public void process(Record<String, Row> row) {
            Long before = counts.get(row.key());
            counts.put(row.key(), before == null ? 1 : before + 1);
            if (passed == null) {
                context().forward(row);
            } else {
                passed.add();
                THROUGH.incrementAndGet();
            }
        }
    }

    /** Writes the rows of all files into the topic, without a key, as files have none. */
    private static void load(Properties order, int workers) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", order.getProperty("bootstrap_servers"));
        settings.put("batch.size", order.getProperty("batch_bytes"));
        settings.put("linger.ms", "20");
        try (Admin admin = Admin.create(settings)) {
            admin.createTopics(List.of(new NewTopic("rows", workers, (short) 1))).all().get();
        }
        int number = 0;
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (String file : order.getProperty("files").split("\n")) {
                try (Told.Rows rows = new Told.Rows(Files.newInputStream(Path.of(file)))) {
                    while (rows.next()) {
                        Row row = new Row(rows.key(0), rows.key(1), rows.payload());
                        byte[] value = ROW.serializer().serialize("rows", row);
                        producer.send(new ProducerRecord<>("rows", number % workers, null, value), (told, error) -> {
                            if (error != null) {
                                fail(error);
                            }
                        });
                    }
                }
                number++;
            }
        }
    }

    private static void fail(Throwable error) {
        error.printStackTrace();
        Runtime.getRuntime().halt(1);
    }

    private static Told.Passed noted(String work) {
        Told.Passed passed = new Told.Passed(work);
        NOTES.add(passed);
        return passed;
    }

    public static void main(String[] args) throws Exception {
        Properties order = Told.order(args[0]);
        String work = order.getProperty("work");
        int workers = Integer.parseInt(order.getProperty("workers"));
        long rows = Long.parseLong(order.getProperty("rows"));
        load(order, workers);
        StreamsBuilder builder = new StreamsBuilder();
        for (String name : List.of("A", "B")) {
            builder.addStateStore(Stores.keyValueStoreBuilder(
                            Stores.persistentKeyValueStore(name), Serdes.String(), Serdes.Long())
                    .withCachingEnabled());
        }
        Repartitioned<String, Row> again = Repartitioned.with(Serdes.String(), ROW).withNumberOfPartitions(workers);
        builder.stream("rows", Consumed.with(Serdes.ByteArray(), ROW))
                .selectKey((key, row) -> row.first)
                .repartition(again.withName("first"))
                .process(() -> new Count("A", null), "A")
                .selectKey((key, row) -> row.second)
                .repartition(again.withName("second"))
                .process(() -> new Count("B", noted(work)), "B");
        Properties settings = new Properties();
        settings.put("application.id", "two-counts");
        settings.put("bootstrap.servers", order.getProperty("bootstrap_servers"));
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("commit.interval.ms", order.getProperty("commit_ms"));
        settings.put("num.stream.threads", workers);
        settings.put("state.dir", work + "/streams");
        settings.put("producer.batch.size", order.getProperty("batch_bytes"));
        settings.put("auto.offset.reset", "earliest");
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
            streams.setUncaughtExceptionHandler(error -> {
                fail(error);
                return StreamThreadExceptionResponse.SHUTDOWN_APPLICATION;
            });
            streams.start();
            while (THROUGH.get() < rows) {
                Thread.sleep(5);
            }
            NOTES.forEach(Told.Passed::note);
            for (String name : List.of("A", "B")) {
                write(streams, name, new Told.Counts(work, name));
            }
        }
    }

    private static void write(KafkaStreams streams, String name, Told.Counts totals) {
        var store = streams.store(
                StoreQueryParameters.fromNameAndType(name, QueryableStoreTypes.<String, Long>keyValueStore()));
        try (KeyValueIterator<String, Long> counts = store.all()) {
            counts.forEachRemaining(each -> totals.add(each.key, each.value));
        }
    }
}
