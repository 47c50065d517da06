"""Every maximum in one place, and the assertions that tie them together. Nothing grows without one of these."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
NUMBER_MAX = 2**63 - 1
"""Offsets, times and rates: whole numbers of 64 bits with a sign, in files, on the wire and in Java."""

# Records and batches
BATCH_HEADER_BYTES = 61
BATCH_BYTES_MAX = 32 * MIB
"""The largest batch that any topic may allow, compressed, with its header."""
BATCH_UNPACKED_BYTES_MAX = 256 * MIB
"""The most that one batch may decompress to; more is a bomb."""
BATCH_RECORDS_MAX = 8 * MIB
MESSAGE_BYTES_DEFAULT = 1 * MIB

# Segments
SEGMENT_BYTES_MIN = 1 * KIB
SEGMENT_BYTES_DEFAULT = 1 * GIB
SEGMENT_BYTES_MAX = 2 * GIB
"""Positions are 32 bits in the index."""
INDEX_INTERVAL_BYTES = 4 * KIB
OFFSET_DELTA_MAX = 2**31 - 1
"""How many offsets one segment may span: index entries hold offsets as 32-bit distances from its base."""
READ_BYTES_MAX = 64 * MIB
PRELOAD_BYTES_MAX = 8 * MIB
"""As much is brought into memory at a time for a reader, unless a single batch is longer."""
SEALED_OPEN_MAX = 8
"""How many sealed segments of a partition are kept open, with their indexes in memory."""

SHORT_LOG_BYTES = 64 * KIB
SHORT_LOG_ENTRIES = 16
"""The end of a log that has less, and fewer entries in its index, is sooner read than files of derived facts."""

LATER_BYTES_MIN = 256 * KIB
"""Under the policy `none`, appends of so many bytes are written by another thread; to wake it for less is no gain."""

DEFER_BYTES_MAX = 16 * KIB
"""With a write-ahead log, appends of up to so many bytes are written to their segment by the thread that writes the
group, before it; a long one is better written while that thread is busy with the group before."""
PLACE_BYTES_MIN = 256 * KIB
"""A reader on the same machine is told where so many bytes stand, instead of being sent them."""

# The write-ahead log
WAL_WINDOW_US = 200
WAL_GROUP_BYTES = 4 * MIB
WAL_GROUP_WRITES = 1000
WAL_FILE_BYTES = 64 * MIB
WAL_FIRST_FILE_BYTES = 8 * MIB
"""A new store begins with a small file, so that it starts at once; the next ones are prepared meanwhile."""
WAL_HEADER_BYTES = 4 * KIB
WAL_WAITING_BYTES_MAX = 64 * MIB
"""How much may wait for a sync before writers are refused."""
WAL_FILES_MAX = 8
"""How many write-ahead files may be in use before writers wait for a checkpoint."""

# A node
TOPIC_NAME_CHARS_MAX = 255
PARTITIONS_PER_TOPIC_MAX = 100_000
PARTITIONS_MAX = 200_000

QUOTA_ENTITIES_MAX = 10_000
"""Users, clients and groups with limits of their own; all are kept in memory and told in one reply."""

# Producers
PRODUCER_BATCHES_KEPT = 5
PRODUCERS_PER_PARTITION_MAX = 100_000
PRODUCER_EXPIRY_MS = 24 * 3600 * 1000

# Compaction
COMPACT_KEYS_MAX = 5_000_000
COMPACT_KEY_BYTES_MAX = 512 * MIB
"""How much key data one cleaning pass holds in memory; a longer dirty section takes several passes."""

# Consumer groups
GROUPS_MAX = 100_000
GROUP_ID_BYTES_MAX = 1 * KIB
GROUP_MEMBERS_MAX = 1_000
"""How many members one group may have, unless the configuration says less."""
GROUP_BYTES_MAX = 16 * MIB
"""What all members of one group may bring along: their metadata and their assignments; it is one record."""
GROUP_WAITING_MAX = 10_000
"""How many requests may wait for one group while a change of it is being written."""
GROUP_PROTOCOLS_MAX = 32
MEMBER_TEXT_BYTES_MAX = 1 * KIB
"""Member id, instance id, client id, host and rack."""
MEMBER_TOPICS_MAX = 10_000
OFFSETS_PER_GROUP_MAX = 200_000
OFFSETS_PER_COMMIT_MAX = 50_000
OFFSET_METADATA_BYTES_MAX = 4 * KIB
PATTERN_CHARS_MAX = 256
PATTERN_STATES_MAX = 2_000
"""How large an automaton one pattern of topics may become, and how many of its states are remembered."""

# Transactions
TRANSACTIONAL_IDS_MAX = 200_000
TRANSACTIONAL_ID_BYTES_MAX = 1 * KIB
"""Transactional ids, the names of native transactions, and owner ids."""
TRANSACTIONS_OPEN_MAX = 20_000
"""How many transactions a node may have open at once; each producer has one at most."""
TRANSACTION_PARTITIONS_MAX = 10_000
TRANSACTION_GROUPS_MAX = 1_000
TRANSACTION_PENDING_BYTES_MAX = 16 * GIB
"""How much one transaction may write, unless the configuration says less."""
TRANSACTION_WAITING_MAX = 10_000
"""How many requests may wait for one transactional id, or one owner, while a change of it is being written."""
TRANSACTION_OWNERS_MAX = 100_000
OWNER_TRANSACTIONS_MAX = 10_000
"""How many transactions one owner may have open; a decision names at most as many."""
OWNER_DECISIONS_KEPT = 16
OWNER_DECIDED_KEPT = 1_000
"""How many committed transactions an owner remembers in its past decisions, beyond the last one."""

assert BATCH_BYTES_MAX <= SEGMENT_BYTES_MAX
assert SEGMENT_BYTES_MAX < 2**32, "index positions are 32 bits"
assert BATCH_BYTES_MAX + WAL_HEADER_BYTES + 4 * KIB <= WAL_FILE_BYTES, "any batch fits into one write-ahead file"
assert WAL_GROUP_BYTES <= WAL_FILE_BYTES // 2
assert WAL_WAITING_BYTES_MAX >= BATCH_BYTES_MAX
assert MESSAGE_BYTES_DEFAULT <= BATCH_BYTES_MAX
assert READ_BYTES_MAX >= BATCH_BYTES_MAX
assert GROUP_BYTES_MAX + GROUP_MEMBERS_MAX * 5 * MEMBER_TEXT_BYTES_MAX <= BATCH_BYTES_MAX, "a group is one record"
assert TRANSACTIONS_OPEN_MAX <= TRANSACTIONAL_IDS_MAX
assert OWNER_TRANSACTIONS_MAX <= TRANSACTIONS_OPEN_MAX, "what is decided at once is open at once"
assert 64 * (OWNER_TRANSACTIONS_MAX + OWNER_DECIDED_KEPT) <= BATCH_BYTES_MAX, "a decision is one record"
assert TRANSACTION_PARTITIONS_MAX * (TOPIC_NAME_CHARS_MAX + 8) <= BATCH_BYTES_MAX // 4, "a transaction is one record"
assert TRANSACTION_GROUPS_MAX * (GROUP_ID_BYTES_MAX + 4) <= BATCH_BYTES_MAX // 4
