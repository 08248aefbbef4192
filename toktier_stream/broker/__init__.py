"""Two brokers behind one narrow port: Apache Kafka, and an embedded one without a server."""
