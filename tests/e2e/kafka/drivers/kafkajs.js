// kafkajs as a driver: one question a line on stdin, one answer a line on stdout. README.md lists the questions.
// Its package has gzip alone. The other codecs are added as its documentation shows: snappy and the reading of zstd
// from packages without native code, the reading of lz4 by hand.

const path = require('path')
const readline = require('readline')
const modules = path.join(process.argv[2], 'node_modules')
const load = (name) => require(path.join(modules, name))

const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = load('kafkajs')
const zstd = load('fzstd')

CompressionCodecs[CompressionTypes.Snappy] = load('kafkajs-snappy')
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async () => { throw new Error('there is no compressor for lz4') },
  decompress: async (buffer) => lz4Frame(buffer),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async () => { throw new Error('there is no compressor for zstd') },
  decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
})

function lz4Frame(frame) {
  const flags = frame[4]
  const blockSum = (flags >> 4) & 1
  let at = 6 + (flags & 8 ? 8 : 0) + (flags & 1 ? 4 : 0) + 1
  const blocks = []
  for (let size = frame.readUInt32LE(at); size !== 0; size = frame.readUInt32LE(at)) {
    const stored = size >>> 31
    const bytes = size & 0x7fffffff
    const block = frame.subarray(at + 4, at + 4 + bytes)
    blocks.push(stored ? block : lz4Block(block))
    at += 4 + bytes + blockSum * 4
  }
  return Buffer.concat(blocks)
}

function lz4Block(block) {
  const out = []
  let at = 0
  const length = (nibble) => {
    let total = nibble
    for (let more = nibble === 15 ? 255 : 0; more === 255; total += more) more = block[at++]
    return total
  }
  while (at < block.length) {
    const token = block[at++]
    for (let left = length(token >> 4); left > 0; left--) out.push(block[at++])
    if (at >= block.length) break
    const back = block.readUInt16LE(at)
    at += 2
    for (let left = length(token & 15) + 4; left > 0; left--) out.push(out[out.length - back])
  }
  return Buffer.from(out)
}

const CODECS = { none: 'None', gzip: 'GZIP', snappy: 'Snappy', lz4: 'LZ4', zstd: 'ZSTD' }
const READ_MS = 20000

const log = () => ({ namespace, level, log }) => console.error(level, namespace, JSON.stringify(log))
const kafkaAt = (servers) =>
  new Kafka({ brokers: [servers], clientId: 'kafkajs', logLevel: logLevel.INFO, logCreator: log })
const toText = (data) => (data === null || data === undefined ? null : Buffer.from(data).toString('base64'))
const toBytes = (text) => (text === null ? null : Buffer.from(text, 'base64'))

function headersIn(pairs) {
  const headers = {}
  for (const [name, text] of pairs) {
    headers[name] = name in headers ? [].concat(headers[name], [toBytes(text)]) : toBytes(text)
  }
  return headers
}

const headersOut = (headers) =>
  Object.entries(headers || {}).flatMap(([name, data]) => [].concat(data).map((each) => [name, toText(each)]))

async function produce({ servers, topic, codec, records, partition }) {
  const producer = kafkaAt(servers).producer({ idempotent: true })
  await producer.connect()
  const messages = records.map((each) => ({
    key: toBytes(each.key),
    value: toBytes(each.value),
    headers: headersIn(each.headers),
    timestamp: String(each.timestamp),
    partition,
  }))
  await producer.send({ topic, acks: -1, compression: CompressionTypes[CODECS[codec]], messages })
  await producer.disconnect()
}

// It has no way to read without a group.
let readers = 0
async function read({ servers, topics }) {
  const consumer = kafkaAt(servers).consumer({ groupId: `kafkajs-reads-${process.pid}-${readers++}`, maxWaitTimeInMs: 100 })
  const found = Object.fromEntries(Object.keys(topics).map((topic) => [topic, []]))
  let timer
  await consumer.connect()
  await consumer.subscribe({ topics: Object.keys(topics), fromBeginning: true })
  await new Promise((resolve, reject) => {
    timer = setTimeout(resolve, READ_MS)
    consumer.on('consumer.crash', ({ payload }) => reject(payload.error))
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ topic, message }) => {
        found[topic].push({
          key: toText(message.key),
          value: toText(message.value),
          headers: headersOut(message.headers),
          timestamp: Number(message.timestamp),
        })
        if (Object.entries(topics).every(([name, count]) => found[name].length >= count)) resolve()
      },
    }).catch(reject)
  }).finally(() => clearTimeout(timer))
  await consumer.disconnect()
  return found
}

// Reads go on for a moment after everything is there, to see whether there is more.
const QUIET_MS = 300
async function look({ servers, topics, committed }) {
  const group = `kafkajs-looks-${process.pid}-${readers++}`
  const consumer = kafkaAt(servers).consumer({ groupId: group, maxWaitTimeInMs: 100, readUncommitted: !committed })
  const found = Object.fromEntries(Object.keys(topics).map((topic) => [topic, { values: [], end: null }]))
  const timers = []
  await consumer.connect()
  await consumer.subscribe({ topics: Object.keys(topics), fromBeginning: true })
  await new Promise((resolve, reject) => {
    timers.push(setTimeout(resolve, READ_MS))
    consumer.on('consumer.crash', ({ payload }) => reject(payload.error))
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ topic, partition, message }) => {
        if (partition !== 0) return
        found[topic].values.push(message.value.toString())
        if (Object.entries(topics).every(([name, count]) => found[name].values.length >= count))
          timers.push(setTimeout(resolve, QUIET_MS))
      },
    }).catch(reject)
  }).finally(() => timers.forEach(clearTimeout))
  await consumer.disconnect()
  return found
}

const writers = []
async function open({ servers, name, timeout_ms }) {
  const producer = kafkaAt(servers).producer({
    transactionalId: name, maxInFlightRequests: 1, idempotent: true, transactionTimeout: timeout_ms,
  })
  await producer.connect()
  await (await producer.transaction()).abort() // only the first transaction asks for a producer id
  return writers.push({ producer, transaction: null }) - 1
}

async function begin({ producer }) {
  writers[producer].transaction = await writers[producer].producer.transaction()
}

async function write({ producer, topic, partition, values }) {
  const messages = values.map((value) => ({ value, partition }))
  await writers[producer].transaction.send({ topic, acks: -1, messages })
}

async function end({ producer, commit }) {
  const { transaction } = writers[producer]
  await (commit ? transaction.commit() : transaction.abort())
}

const finish = async (producer, how) => { if (how !== 'leave') await end({ producer, commit: how === 'commit' }) }

async function transfer({ producer, notes, end: how }) {
  await begin({ producer })
  for (const [topic, partition, note] of notes) await write({ producer, topic, partition, values: [note] })
  await finish(producer, how)
}

async function work({ producer, servers, group, source, target, count, end: how }) {
  const consumer = kafkaAt(servers).consumer({
    groupId: group, sessionTimeout: 6000, heartbeatInterval: 300, rebalanceTimeout: 10000, maxWaitTimeInMs: 100,
  })
  const taken = []
  let timer
  await consumer.connect()
  await consumer.subscribe({ topics: [source], fromBeginning: true })
  await new Promise((resolve, reject) => {
    timer = setTimeout(resolve, READ_MS)
    consumer.on('consumer.crash', ({ payload }) => reject(payload.error))
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        if (taken.length < count) taken.push([partition, Number(message.offset), message.value.toString()])
        if (taken.length === count) resolve()
      },
    }).catch(reject)
  }).finally(() => clearTimeout(timer))
  if (taken.length < count) throw new Error(`only ${taken.length} records came`)
  await begin({ producer })
  await write({ producer, topic: target, partition: 0, values: taken.map(([, , value]) => `made of ${value}`) })
  const following = new Map(taken.map(([partition, offset]) => [partition, offset + 1]))
  const partitions = [...following].map(([partition, offset]) => ({ partition, offset: String(offset) }))
  await writers[producer].transaction.sendOffsets({ consumerGroupId: group, topics: [{ topic: source, partitions }] })
  await consumer.disconnect()
  await finish(producer, how)
}

const abandon = ({ producer }) => writers[producer].producer.disconnect()

const members = []
async function join({ servers, group, topic }) {
  const consumer = kafkaAt(servers).consumer({
    groupId: group,
    sessionTimeout: 6000,
    heartbeatInterval: 300,
    rebalanceTimeout: 10000,
    maxWaitTimeInMs: 100,
  })
  const member = { consumer, assigned: [], got: [] }
  consumer.on('consumer.group_join', ({ payload }) => {
    member.assigned = [...(payload.memberAssignment[topic] || [])].sort((a, b) => a - b)
  })
  consumer.on('consumer.rebalancing', () => { member.assigned = [] })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    eachMessage: async ({ partition, message }) => {
      member.got.push([partition, Number(message.offset), message.value.toString()])
    },
  })
  return members.push(member) - 1
}

const state = ({ member }) => ({ assigned: members[member].assigned, got: members[member].got })

async function leave({ member }) {
  await members[member].consumer.disconnect()
  return state({ member })
}

async function withAdmin(servers, work) {
  const admin = kafkaAt(servers).admin()
  await admin.connect()
  try {
    return await work(admin)
  } finally {
    await admin.disconnect()
  }
}

const describe = ({ servers, group, topic }) =>
  withAdmin(servers, async (admin) => {
    const { groups } = await admin.listGroups()
    const described = await admin.describeGroups([group])
    const [offsets] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
    return {
      listed: groups.some((each) => each.groupId === group),
      members: described.groups[0].members.length,
      offsets: Object.fromEntries(offsets.partitions.map((each) => [String(each.partition), Number(each.offset)])),
    }
  })

const deleteGroup = ({ servers, group }) => withAdmin(servers, async (admin) => { await admin.deleteGroups([group]) })

const administer = ({ servers, topic }) =>
  withAdmin(servers, async (admin) => {
    const count = async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
    const retention = async () => {
      const { resources } = await admin.describeConfigs({ includeSynonyms: false, resources: [resource] })
      return resources[0].configEntries.find((each) => each.configName === 'retention.ms').configValue
    }
    const configEntries = (value) => [{ name: 'retention.ms', value }]
    await admin.createTopics({ topics: [{ topic, numPartitions: 2, configEntries: configEntries('3600000') }] })
    const found = { created: await count() }
    await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
    found.grown = await count()
    found.retention = await retention()
    await admin.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries: configEntries('7200000') }] })
    found.altered = await retention()
    found.listed = (await admin.listTopics()).includes(topic)
    await admin.deleteTopics({ topics: [topic] })
    found.deleted = !(await admin.listTopics()).includes(topic)
    return found
  })

const questions = {
  version: () => load('kafkajs/package.json').version,
  produce, read, join, state, leave, describe, administer,
  look, open, begin, write, end, transfer, work, abandon,
  delete_group: deleteGroup,
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { op, ...rest } = JSON.parse(line)
    let answer
    try {
      answer = { ok: (await questions[op](rest)) ?? null }
    } catch (error) {
      console.error(error)
      answer = { error: String(error) }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  process.exit(0)
}

main()
