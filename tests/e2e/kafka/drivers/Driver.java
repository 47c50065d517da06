// The Java client as a driver: one question a line on stdin, one answer a line on stdout. README.md lists the questions.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

public class Driver {
    static final long READ_MS = 20_000;
    static final ObjectMapper JSON = new ObjectMapper();
    static final long QUIET_MS = 300;
    static final List<Member> members = new ArrayList<>();
    static final List<KafkaProducer<byte[], byte[]>> writers = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> answer = new HashMap<>();
            try {
                JsonNode question = JSON.readTree(line);
                answer.put("ok", answerTo(question.get("op").asText(), question));
            } catch (Throwable error) {
                error.printStackTrace();
                answer.put("error", error.toString());
            }
            out.println(JSON.writeValueAsString(answer));
            out.flush();
        }
        System.exit(0);
    }

    static Object answerTo(String op, JsonNode question) throws Exception {
        return switch (op) {
            case "version" -> AppInfoParser.getVersion();
            case "produce" -> produce(question);
            case "read" -> read(question);
            case "join" -> join(question);
            case "state" -> members.get(question.get("member").asInt()).told();
            case "leave" -> members.get(question.get("member").asInt()).leave();
            case "describe" -> describe(question);
            case "delete_group" -> deleteGroup(question);
            case "administer" -> administer(question);
            case "look" -> look(question);
            case "open" -> open(question);
            case "begin", "write", "end", "transfer", "work", "abandon" -> {
                inTransaction(op, writers.get(question.get("producer").asInt()), question);
                yield null;
            }
            case "features" -> features(question);
            default -> throw new IllegalArgumentException(op);
        };
    }

    static String text(byte[] data) {
        return data == null ? null : Base64.getEncoder().encodeToString(data);
    }

    static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    static Map<String, Object> at(JsonNode question) {
        return new HashMap<>(Map.of("bootstrap.servers", question.get("servers").asText()));
    }

    static Object produce(JsonNode question) throws Exception {
        Map<String, Object> config = at(question);
        config.put("compression.type", question.get("codec").asText());
        config.put("linger.ms", 5);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (JsonNode each : question.get("records")) {
                List<Header> headers = new ArrayList<>();
                for (JsonNode pair : each.get("headers"))
                    headers.add(new RecordHeader(pair.get(0).asText(), bytes(pair.get(1))));
                sent.add(producer.send(new ProducerRecord<>(
                    question.get("topic").asText(), question.get("partition").asInt(), each.get("timestamp").asLong(),
                    bytes(each.get("key")), bytes(each.get("value")), headers)));
            }
            producer.flush();
            for (Future<RecordMetadata> each : sent) each.get();
        }
        return null;
    }

    static KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> config) {
        config.put("auto.offset.reset", "earliest");
        config.put("enable.auto.commit", false);
        config.put("fetch.max.wait.ms", 100);
        return new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static Object read(JsonNode question) {
        Map<String, List<Object>> found = new LinkedHashMap<>();
        Map<String, Integer> wanted = new HashMap<>();
        question.get("topics").properties().forEach(each -> wanted.put(each.getKey(), each.getValue().asInt()));
        wanted.keySet().forEach(topic -> found.put(topic, new ArrayList<>()));
        long deadline = System.currentTimeMillis() + READ_MS;
        try (var consumer = consumer(at(question))) {
            consumer.assign(wanted.keySet().stream().map(topic -> new TopicPartition(topic, 0)).toList());
            while (wanted.entrySet().stream().anyMatch(each -> found.get(each.getKey()).size() < each.getValue())
                && System.currentTimeMillis() < deadline)
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(200)))
                    found.get(each.topic()).add(told(each));
        }
        return found;
    }

    static Object look(JsonNode question) {
        Map<String, Integer> wanted = new HashMap<>();
        question.get("topics").properties().forEach(each -> wanted.put(each.getKey(), each.getValue().asInt()));
        Map<String, List<String>> found = new LinkedHashMap<>();
        wanted.keySet().forEach(topic -> found.put(topic, new ArrayList<>()));
        List<TopicPartition> places = wanted.keySet().stream().map(topic -> new TopicPartition(topic, 0)).toList();
        Map<String, Object> config = at(question);
        config.put("isolation.level", question.get("committed").asBoolean() ? "read_committed" : "read_uncommitted");
        Map<String, Object> told = new HashMap<>();
        try (var consumer = consumer(config)) {
            consumer.assign(places);
            Map<TopicPartition, Long> ends = consumer.endOffsets(places);
            long deadline = System.currentTimeMillis() + READ_MS;
            boolean all = false;
            while (System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(100)))
                    found.get(each.topic()).add(new String(each.value()));
                if (!all && wanted.entrySet().stream().allMatch(each -> found.get(each.getKey()).size() >= each.getValue())) {
                    all = true;
                    deadline = System.currentTimeMillis() + QUIET_MS;
                }
            }
            found.forEach((topic, values) ->
                told.put(topic, Map.of("values", values, "end", ends.get(new TopicPartition(topic, 0)))));
        }
        return told;
    }

    static Object open(JsonNode question) {
        Map<String, Object> config = at(question);
        config.put("transactional.id", question.get("name").asText());
        config.put("transaction.timeout.ms", question.get("timeout_ms").asInt());
        config.put("linger.ms", 0);
        var writer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
        writer.initTransactions();
        writers.add(writer);
        return writers.size() - 1;
    }

    static void inTransaction(String op, KafkaProducer<byte[], byte[]> writer, JsonNode question) throws Exception {
        switch (op) {
            case "begin" -> writer.beginTransaction();
            case "write" -> write(writer, question);
            case "end" -> finish(writer, question.get("commit").asBoolean() ? "commit" : "abort");
            case "transfer" -> {
                writer.beginTransaction();
                for (JsonNode note : question.get("notes"))
                    writer.send(new ProducerRecord<>(
                        note.get(0).asText(), note.get(1).asInt(), null, note.get(2).asText().getBytes()));
                writer.flush();
                finish(writer, question.get("end").asText());
            }
            case "work" -> work(writer, question);
            case "abandon" -> writer.close(Duration.ZERO);
        }
    }

    static void finish(KafkaProducer<byte[], byte[]> writer, String how) {
        switch (how) {
            case "commit" -> writer.commitTransaction();
            case "abort" -> writer.abortTransaction();
            default -> writer.flush();
        }
    }

    static void write(KafkaProducer<byte[], byte[]> writer, JsonNode question) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode value : question.get("values"))
            sent.add(writer.send(new ProducerRecord<>(
                question.get("topic").asText(), question.get("partition").asInt(), null, value.asText().getBytes())));
        writer.flush();
        for (Future<RecordMetadata> each : sent)
            try {
                each.get();
            } catch (ExecutionException failed) {
                throw (Exception) failed.getCause();
            }
    }

    static void work(KafkaProducer<byte[], byte[]> writer, JsonNode question) {
        String source = question.get("source").asText(), target = question.get("target").asText();
        Map<String, Object> config = at(question);
        config.put("group.id", question.get("group").asText());
        config.put("isolation.level", "read_committed");
        Map<TopicPartition, OffsetAndMetadata> following = new HashMap<>();
        int left = question.get("count").asInt();
        config.put("max.poll.records", left);
        long deadline = System.currentTimeMillis() + READ_MS;
        writer.beginTransaction();
        try (var consumer = consumer(config)) {
            consumer.subscribe(List.of(source));
            while (left > 0 && System.currentTimeMillis() < deadline)
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(100))) {
                    if (left-- <= 0) break;
                    byte[] made = ("made of " + new String(each.value())).getBytes();
                    writer.send(new ProducerRecord<>(target, 0, null, made));
                    following.put(
                        new TopicPartition(source, each.partition()), new OffsetAndMetadata(each.offset() + 1));
                }
            if (left > 0) throw new IllegalStateException(left + " records did not come");
            writer.sendOffsetsToTransaction(following, consumer.groupMetadata());
        }
        finish(writer, question.get("end").asText());
    }

    static Object features(JsonNode question) throws Exception {
        try (Admin admin = Admin.create(at(question))) {
            Map<String, Object> levels = new HashMap<>();
            admin.describeFeatures().featureMetadata().get().finalizedFeatures()
                .forEach((name, range) -> levels.put(name, range.maxVersionLevel()));
            return levels;
        }
    }

    static Map<String, Object> told(ConsumerRecord<byte[], byte[]> record) {
        Map<String, Object> told = new HashMap<>();
        List<List<String>> headers = new ArrayList<>();
        for (Header each : record.headers()) {
            List<String> pair = new ArrayList<>();
            pair.add(each.key());
            pair.add(text(each.value()));
            headers.add(pair);
        }
        told.put("key", text(record.key()));
        told.put("value", text(record.value()));
        told.put("headers", headers);
        told.put("timestamp", record.timestamp());
        return told;
    }

    static class Member implements ConsumerRebalanceListener {
        final KafkaConsumer<byte[], byte[]> consumer;
        final Set<Integer> assigned = new TreeSet<>();
        final List<Object> got = new ArrayList<>();
        final Thread thread;
        volatile boolean stopping = false;
        volatile String failure = null;

        Member(JsonNode question) {
            Map<String, Object> config = at(question);
            config.put("group.id", question.get("group").asText());
            if (question.get("kind").asText().equals("consumer")) {
                config.put("group.protocol", "consumer");
            } else {
                config.put("group.protocol", "classic");
                config.put("session.timeout.ms", 6_000);
                config.put("heartbeat.interval.ms", 300);
            }
            consumer = consumer(config);
            consumer.subscribe(List.of(question.get("topic").asText()), this);
            thread = new Thread(this::poll);
            thread.setDaemon(true);
            thread.start();
        }

        void poll() {
            try (consumer) {
                while (!stopping)
                    for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(100)))
                        synchronized (this) {
                            got.add(List.of(each.partition(), each.offset(), new String(each.value())));
                        }
            } catch (Throwable error) {
                error.printStackTrace();
                failure = error.toString();
            }
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            consumer.commitSync();
            synchronized (this) {
                partitions.forEach(each -> assigned.remove(each.partition()));
            }
        }

        @Override
        public synchronized void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            partitions.forEach(each -> assigned.add(each.partition()));
        }

        synchronized Object told() {
            if (failure != null) throw new IllegalStateException(failure);
            return Map.of("assigned", List.copyOf(assigned), "got", List.copyOf(got));
        }

        Object leave() throws Exception {
            stopping = true;
            thread.join();
            return told();
        }
    }

    static Object join(JsonNode question) {
        members.add(new Member(question));
        return members.size() - 1;
    }

    static Object describe(JsonNode question) throws Exception {
        String group = question.get("group").asText(), topic = question.get("topic").asText();
        try (Admin admin = Admin.create(at(question))) {
            Map<String, Long> offsets = new HashMap<>();
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().forEach((place, found) -> {
                if (place.topic().equals(topic)) offsets.put(String.valueOf(place.partition()), found.offset());
            });
            return Map.of(
                "listed", admin.listGroups().all().get().stream().anyMatch(each -> each.groupId().equals(group)),
                "members", admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().size(),
                "offsets", offsets);
        }
    }

    static Object deleteGroup(JsonNode question) throws Exception {
        try (Admin admin = Admin.create(at(question))) {
            admin.deleteConsumerGroups(List.of(question.get("group").asText())).all().get();
        }
        return null;
    }

    static int partitions(Admin admin, String topic) throws Exception {
        return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
    }

    static String retention(Admin admin, ConfigResource resource) throws Exception {
        return admin.describeConfigs(List.of(resource)).all().get().get(resource).get("retention.ms").value();
    }

    static Object administer(JsonNode question) throws Exception {
        String topic = question.get("topic").asText();
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Map<String, Object> found = new HashMap<>();
        try (Admin admin = Admin.create(at(question))) {
            NewTopic wanted = new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "3600000"));
            admin.createTopics(List.of(wanted)).all().get();
            found.put("created", partitions(admin, topic));
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
            found.put("grown", partitions(admin, topic));
            found.put("retention", retention(admin, resource));
            var change = new AlterConfigOp(new ConfigEntry("retention.ms", "7200000"), AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
            found.put("altered", retention(admin, resource));
            found.put("listed", admin.listTopics().names().get().contains(topic));
            admin.deleteTopics(List.of(topic)).all().get();
            found.put("deleted", !admin.listTopics().names().get().contains(topic));
        }
        return found;
    }
}
