"""What only real brokers do to a source: transactions, retention, compaction, topics made anew, leaders that move."""

from __future__ import annotations

import datetime as dt
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

import weir
import weir.testing
from support import rows_of
from topics import own_kafka
from truth import eventually
from weir.errors import SourceError
from weir.faults import watching
from weir.messages.topics import Topics


def counted(brokers, topic, **more):
    return weir.kafka(brokers.servers, topic, "place string", **more).keyed(
        "place", weir.Count(), name="places"
    )


def places(*names):
    return [{"place": name} for name in names]


def counts(query):
    return dict(rows_of(query.state("places")))


class Transactions:
    """A producer that writes rows in transactions."""

    def __init__(self, brokers, name, **settings):
        config = {"bootstrap.servers": brokers.servers, "transactional.id": name, "log_level": 0, **settings}
        self._producer = Producer(config)
        self._producer.init_transactions(20)

    def write(self, topic, *names, partition=0):
        self._producer.begin_transaction()
        for name in names:
            self._producer.produce(topic, b'{"place": "%s"}' % name.encode(), partition=partition)
        self._producer.flush(20)

    def commit(self):
        self._producer.commit_transaction(20)

    def abort(self):
        self._producer.abort_transaction(20)


def test_aborted_batches_in_between_are_passed_over(kafka, checkpoint):
    topic = kafka.topic(2)
    one, two = (Transactions(kafka, f"{topic}-{n}") for n in range(2))
    with weir.testing.start(counted(kafka, topic, max_rows_per_batch=3), checkpoint, servers=2) as query:
        for number in range(6):
            one.write(topic, "a", "b", partition=number % 2)
            two.write(topic, "gone", "gone", "gone", partition=number % 2)
            (one.commit, two.abort)[number % 2]()
            (two.abort, one.commit)[number % 2]()
            query.feed()
        # a commit is answered before readers see it
        eventually(lambda: query.feed() or sum(counts(query).values()) >= 12)
        assert counts(query) == {"a": 6, "b": 6}
    everything = counted(kafka, topic, committed=False)
    with weir.testing.start(everything, servers=2) as query:
        query.feed()
        assert counts(query) == {"a": 6, "b": 6, "gone": 18}


def test_nothing_behind_an_open_transaction_is_read_before_it_ends(kafka, checkpoint):
    topic = kafka.topic(1)
    slow = Transactions(kafka, topic)
    with weir.testing.start(counted(kafka, topic), checkpoint, servers=2) as query:
        kafka.send(topic, places("before"))
        slow.write(topic, "slow")
        kafka.send(topic, places("behind"))
        query.feed()
        assert counts(query) == {"before": 1}
        slow.commit()
        eventually(lambda: query.feed() or len(counts(query)) == 3)
        assert counts(query) == {"before": 1, "slow": 1, "behind": 1}


def test_a_transaction_that_times_out_no_longer_holds_up_what_is_behind(kafka):
    topic = kafka.topic(1)
    Transactions(kafka, topic, **{"transaction.timeout.ms": 1000}).write(topic, "dead")
    kafka.send(topic, places("behind"))
    with weir.testing.start(counted(kafka, topic), servers=1) as query:
        query.feed()
        assert counts(query) == {}
        eventually(lambda: query.feed() or counts(query))
        assert counts(query) == {"behind": 1}


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("on_expired", ["fail", "skip"])
def test_retention_that_deletes_what_a_plan_names(kafka, on_expired, crash):
    """The plan is on disk; before it is read, or before the driver is back, the broker has forgotten half of it."""
    topic, met = kafka.topic(1), []
    kafka.send(topic, places(*"abcdef"))

    def forget(point, batch):
        if point == "plan-written" and not met:
            met.append(batch)
            kafka.expire(topic, before=3)
            if crash:
                raise weir.testing.Crash(point)

    app = counted(kafka, topic, on_expired=on_expired)
    with weir.testing.start(app, servers=2) as query, watching(forget):
        if on_expired == "fail":
            with pytest.raises(SourceError, match="have expired"):
                query.feed()
        else:
            query.feed()
            assert counts(query) == {"d": 1, "e": 1, "f": 1}
    assert met


def test_a_compacted_topic_is_read_to_its_end(kafka):
    topic = kafka.topic(
        1, cleanup_policy="compact", segment_ms=100, min_cleanable_dirty_ratio=0.01, delete_retention_ms=100
    )
    for round_ in range(5):
        for key in "abc":
            kafka.send(topic, places(f"{key}{round_}"), key=key.encode())
        time.sleep(0.15)
        kafka.send(topic, places("active"), key=b"active")  # rolls the segment

    def compacted():
        kafka.send(topic, places("active"), key=b"active")
        return len(kafka.values(topic)) < 15

    eventually(compacted)
    with weir.testing.start(counted(kafka, topic), servers=2) as query:
        query.feed()
        last = {place: n for place, n in counts(query).items() if place != "active"}
        assert last.items() >= {"a4": 1, "b4": 1, "c4": 1}.items()
        assert query.progress.sources["kafka"]["lag"] == 0


def test_partitions_that_are_added_are_read_from_their_first_message(kafka, checkpoint):
    topic = kafka.topic(1)
    with weir.testing.start(counted(kafka, topic, start="latest"), checkpoint, servers=2) as query:
        query.feed()
        kafka.send(topic, places("old"))
        kafka.grow(topic, 3)
        kafka.send(topic, places("new"), partition=2)
        query.feed()
        assert counts(query) == {"old": 1, "new": 1}
        assert query.progress.sources["kafka"]["partitions"] == 3


def test_a_topic_made_anew_is_refused_even_if_it_is_longer(kafka, checkpoint):
    topic = kafka.topic(1)
    kafka.send(topic, places("a"))
    with weir.testing.start(counted(kafka, topic), checkpoint, servers=1) as query:
        query.feed()
        kafka.delete(topic)
        kafka.create(topic, 1)
        kafka.send(topic, places(*"bcd"))
        with pytest.raises(SourceError, match="deleted and made anew"):
            query.feed()
    with (
        weir.testing.start(counted(kafka, topic), checkpoint, servers=1) as query,
        pytest.raises(SourceError, match="deleted and made anew"),
    ):
        query.feed()


def test_a_checkpoint_that_knows_no_ids_of_topics_learns_them(kafka, checkpoint, monkeypatch):
    topic = kafka.topic(1)
    with monkeypatch.context() as patch:
        patch.setattr(Topics, "ids", lambda self, names: {})
        with weir.testing.start(counted(kafka, topic), checkpoint, servers=1) as query:
            kafka.send(topic, places("a"))
            query.feed()
    with weir.testing.start(counted(kafka, topic), checkpoint, servers=1) as query:
        kafka.send(topic, places("b"))
        query.feed()
        assert counts(query) == {"a": 1, "b": 1}
        assert query._driver.ledger.last.input.positions["kafka (paths)"][topic] > 0


def test_topics_are_chosen_by_a_pattern(kafka, checkpoint):
    first = kafka.topic(1)
    kafka.create(f"{first}-b", 1)
    kafka.create(f"not-{first}", 1)
    kafka.send(first, places("a"))
    kafka.send(f"not-{first}", places("never"))
    app = counted(kafka, f"^{first}.*")
    with weir.testing.start(app, checkpoint, servers=2) as query:
        query.feed()
        kafka.create(f"{first}-c", 2)
        kafka.send(f"{first}-b", places("b"))
        kafka.send(f"{first}-c", places("c"), partition=1)
        query.feed()
        assert counts(query) == {"a": 1, "b": 1, "c": 1}
        assert query.progress.sources["kafka"]["partitions"] == 4
        kafka.delete(f"{first}-b")
        with pytest.raises(SourceError, match='on_expired="skip"'):
            query.feed()
    with weir.testing.start(counted(kafka, f"^{first}.*", on_expired="skip"), checkpoint, servers=2) as query:
        kafka.send(first, places("a"))
        query.feed()
        assert counts(query) == {"a": 2, "b": 1, "c": 1}


def test_a_group_is_told_how_far_batches_have_come(kafka, checkpoint):
    topic = kafka.topic(2)
    group, where = f"group of {topic}", [TopicPartition(topic, n) for n in range(2)]
    kafka.send(topic, places(*"abc"))
    kafka.send(topic, places(*"de"), partition=1)
    watcher = Consumer({"bootstrap.servers": kafka.servers, "group.id": group})

    def committed():
        return [place.offset for place in watcher.committed(where, 10)]

    with weir.testing.start(counted(kafka, topic, group=group), checkpoint, servers=2) as query:
        query.feed()
        eventually(lambda: committed() == [3, 2])
        kafka.send(topic, places("f"), partition=1)
        query.feed()
        eventually(lambda: committed() == [3, 3])
    # whoever sets the group back changes nothing: the checkpoint decides
    watcher.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    watcher.close()
    with weir.testing.start(counted(kafka, topic, group=group), checkpoint, servers=2) as query:
        query.feed()
        assert sum(counts(query).values()) == 6


def test_headers_times_and_keys_are_columns(kafka):
    topic = kafka.topic(1, retention_ms=-1)
    at = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    headers = [("trace", b"7"), ("trace", b"8"), ("empty", None)]
    kafka.send(topic, places("a"), key=b"k", headers=headers, timestamp=int(at.timestamp() * 1000))
    kafka.send(topic, places("b"))
    columns = "place string, kafka_key binary, kafka_timestamp timestamp, kafka_headers map<string, string>"
    app = weir.kafka(kafka.servers, topic, columns).map(lambda row: row, name="same")
    with weir.testing.start(app, servers=1) as query:
        query.feed()
        first, second = query.output("same").to_pylist()
    assert (first["kafka_key"], first["kafka_timestamp"]) == (b"k", at)
    assert first["kafka_headers"] == [("trace", "8"), ("empty", None)]  # of one name the last
    assert (second["kafka_key"], second["kafka_headers"]) == (None, [])


def test_a_query_starts_from_a_time(kafka):
    topic = kafka.topic(2, retention_ms=-1)
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    for hours, place in ((-1, "before"), (0, "noon"), (1, "after")):
        kafka.send(topic, places(place), timestamp=int((noon.timestamp() + 3600 * hours) * 1000))
    with weir.testing.start(counted(kafka, topic, start=noon), servers=1) as query:
        query.feed()
        kafka.send(topic, places("other"), partition=1)
        query.feed()
        assert counts(query) == {"noon": 1, "after": 1, "other": 1}


def test_messages_are_deleted_by_the_brokers_own_retention(kafka, checkpoint):
    topic = kafka.topic(1, segment_ms=100)
    kafka.send(topic, places("old"))
    with weir.testing.start(counted(kafka, topic), checkpoint, servers=1) as query:
        query.feed()
        kafka.send(topic, places("unread"))
        resource = ConfigResource(ResourceType.TOPIC, topic)
        resource.add_incremental_config(
            ConfigEntry("retention.ms", "200", incremental_operation=AlterConfigOpType.SET)
        )
        for done in kafka.admin.incremental_alter_configs([resource]).values():
            done.result(10)

        def deleted():
            kafka.send(topic, places("later"))
            return Topics(kafka.servers, (topic,)).offsets([f"{topic}/0"])[f"{topic}/0"][0] > 1

        eventually(deleted)
        with pytest.raises(SourceError, match="have expired"):
            query.feed()


# ---------------------------------------------------------------------- brokers of their own


@pytest.mark.long
def test_a_leader_that_dies_is_followed_to_the_next(checkpoint):
    with own_kafka(3) as kafka:
        topic = kafka.topic(6)
        for partition in range(6):
            kafka.send(topic, places("a", "b"), partition)
        with weir.testing.start(counted(kafka, topic, max_rows_per_batch=6), checkpoint, servers=2) as query:
            leaders = {p.leader for p in kafka.admin.list_topics(topic, 10).topics[topic].partitions.values()}
            assert leaders == {1, 2, 3}

            def kill_a_leader(point, batch):
                if point == "plan-written" and batch == 1 and 2 in kafka.running:
                    kafka.kill(2)

            with watching(kill_a_leader):
                query.feed()
            assert counts(query) == {"a": 6, "b": 6}
            for partition in range(6):
                kafka.send(topic, places("c"), partition)
            query.feed()
            assert counts(query) == {"a": 6, "b": 6, "c": 6}


PASSWORD = "long enough"


@pytest.mark.long
def test_passwords_and_certificates(tmp_path, monkeypatch):
    from certificates import self_signed

    key, certificate = self_signed(tmp_path)
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    settings = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{scram};",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificate.with_suffix(".both")),
    }
    certificate.with_suffix(".both").write_bytes(key.read_bytes() + certificate.read_bytes())
    with own_kafka(settings=settings, secure=("SSL", "SASL_SSL")) as kafka:
        kafka.add_user("alice", PASSWORD)
        topic = kafka.topic(1)
        kafka.send(topic, places("a"))
        tls = {"ssl.ca.location": str(certificate), "security.protocol": "ssl"}
        alice = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice", "sasl.password": PASSWORD}
        sasl = {**tls, **alice, "security.protocol": "sasl_ssl"}
        for protocol, ours in (("SSL", tls), ("SASL_SSL", sasl)):
            source = weir.kafka(kafka.listeners[protocol], topic, "place string", settings=ours)
            out = kafka.topic(1)
            sink = weir.sinks.Kafka(kafka.listeners[protocol], out, settings=ours)
            app = source.keyed("place", weir.Count(), name="places")
            with weir.testing.start(app, servers=1, sink=sink, faults=["sink-committed:0"]) as query:
                query.feed()
            assert kafka.read(out) == [{"place": "a", "count": 1}]
        monkeypatch.setattr("weir.messages.topics.CALL", 1.0)
        wrong = {**sasl, "sasl.password": "wrong"}
        source = weir.kafka(kafka.listeners["SASL_SSL"], topic, "place string", settings=wrong)
        with (
            weir.testing.start(source.keyed("place", weir.Count()), servers=1) as query,
            pytest.raises(SourceError, match="[Aa]uthentication"),
        ):
            query.feed()
