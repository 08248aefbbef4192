#!/bin/sh
# Creates the five topics as a worker with TOKTIER_CREATE_TOPICS=true would, so that workers need no
# right to do it; a worker checks partitions, compaction and limits at its start.
#
# It reads the worker's own TOKTIER_ variables and has the worker's defaults. Topics that exist are
# left as they are. Replication is the cluster's default.
set -eu

kafka_topics=${KAFKA_TOPICS:-/opt/kafka/bin/kafka-topics.sh}
bootstrap=${TOKTIER_BROKER#kafka://}
partitions=${TOKTIER_PARTITIONS:-4}

kib=1024
event=$((${TOKTIER_MAX_EVENT_BYTES:-1048576} + 64 * kib))
part=$((${TOKTIER_PART_BYTES:-524288} + 64 * kib))
batch=$((512 * kib)) # producers fill batches up to this, whatever the topic

# create TOPIC CLEANUP_POLICY LARGEST_RECORD: Kafka's limit is one of batches, so it leaves room for
# framing and for what a codec adds to what it cannot compress.
create() {
    limit=$(($3 + $3 / 100 + 64 * kib))
    if [ "$limit" -lt "$batch" ]; then
        limit=$batch
    fi
    "$kafka_topics" --bootstrap-server "$bootstrap" --create --if-not-exists \
        --topic "$1" --partitions "$partitions" \
        --config "cleanup.policy=$2" --config "max.message.bytes=$limit"
}

create "${TOKTIER_TOPIC_APPENDS:-toktier.appends}" delete "$event"
create "${TOKTIER_TOPIC_TOKENS:-toktier.tokens}" delete "$part"
create "${TOKTIER_TOPIC_CHECKS:-toktier.checks}" delete $((64 * kib))
create "${TOKTIER_TOPIC_REJECTS:-toktier.rejects}" delete $((event + 64 * kib))
create "${TOKTIER_TOPIC_SESSIONS:-toktier.sessions}" compact $((256 * kib))
