"""Topics of Kafka: which offsets there are, the messages of a range, and what their payloads say."""
