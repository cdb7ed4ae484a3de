-- What every store has. Statements end with ";" at the end of a line, and can be run again after a failure.
-- docs/scale.md has the same tables for a cluster: keep both alike.

CREATE TABLE IF NOT EXISTS meta (key String, value String) ENGINE = ReplacingMergeTree ORDER BY key;

CREATE TABLE IF NOT EXISTS samples
(
    ts          DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    type        LowCardinality(String),
    unit        LowCardinality(String),
    sample_type LowCardinality(String),
    sample_unit LowCardinality(String),
    period      UInt64 CODEC(ZSTD(1)),
    duration_ns UInt64 CODEC(ZSTD(1)),
    cluster     LowCardinality(String),
    namespace   LowCardinality(String),
    workload    LowCardinality(String),
    pod         LowCardinality(String),
    container   LowCardinality(String),
    node        LowCardinality(String),
    service     LowCardinality(String),
    instance    LowCardinality(String),
    executable  LowCardinality(String),
    thread      LowCardinality(String),
    pid         UInt32 CODEC(ZSTD(1)),
    tid         UInt32 CODEC(ZSTD(1)),
    attributes  Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    resource_id UInt64 CODEC(ZSTD(1)),
    stack_id    UInt64 CODEC(ZSTD(1)),
    trace_id    FixedString(16) CODEC(ZSTD(1)),
    span_id     FixedString(8) CODEC(ZSTD(1)),
    value       Int64 CODEC(ZSTD(1)),
    count       Int64 CODEC(ZSTD(1)),
    INDEX times ts TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toStartOfInterval(ts, INTERVAL 6 HOUR)
ORDER BY (type, namespace, toStartOfMinute(ts), workload, pod, stack_id);

CREATE TABLE IF NOT EXISTS functions
(
    function_id UInt64,
    day         Date,
    name        SimpleAggregateFunction(any, String),
    file        SimpleAggregateFunction(any, String),
    mapping     SimpleAggregateFunction(any, String),
    kind        SimpleAggregateFunction(any, String),
    line        SimpleAggregateFunction(min, UInt32),
    unnamed     SimpleAggregateFunction(any, UInt8)
)
ENGINE = AggregatingMergeTree PARTITION BY day ORDER BY function_id
SETTINGS index_granularity = 1024;

CREATE TABLE IF NOT EXISTS frames
(
    frame_id     UInt64,
    day          Date,
    kind         LowCardinality(String),
    address      UInt64,
    mapping      LowCardinality(String),
    gnu_build_id LowCardinality(String),
    go_build_id  LowCardinality(String),
    htlhash      LowCardinality(String),
    functions    Array(UInt64),
    system_names Array(String),
    lines        Array(Int64),
    columns      Array(Int64),
    attributes   Map(LowCardinality(String), String)
)
ENGINE = ReplacingMergeTree PARTITION BY day ORDER BY frame_id
SETTINGS index_granularity = 1024;

CREATE TABLE IF NOT EXISTS stacks
(
    stack_id  UInt64,
    day       Date,
    functions Array(UInt64) CODEC(ZSTD(1)),
    frames    Array(UInt64) CODEC(ZSTD(1))
)
ENGINE = ReplacingMergeTree PARTITION BY day ORDER BY stack_id
SETTINGS index_granularity = 1024;

CREATE TABLE IF NOT EXISTS resources
(
    resource_id UInt64,
    day         Date,
    attributes  Map(LowCardinality(String), String)
)
ENGINE = ReplacingMergeTree PARTITION BY day ORDER BY resource_id
SETTINGS index_granularity = 1024;

CREATE TABLE IF NOT EXISTS timeline
(
    minute     DateTime('UTC'),
    type       LowCardinality(String),
    unit       LowCardinality(String),
    cluster    LowCardinality(String),
    namespace  LowCardinality(String),
    workload   LowCardinality(String),
    pod        LowCardinality(String),
    container  LowCardinality(String),
    node       LowCardinality(String),
    service    LowCardinality(String),
    instance   LowCardinality(String),
    executable LowCardinality(String),
    value      Int64,
    count      Int64
)
ENGINE = SummingMergeTree((value, count))
PARTITION BY toStartOfInterval(minute, INTERVAL 6 HOUR)
ORDER BY (type, namespace, minute, workload, pod, container, node, service, instance, executable, cluster, unit);

CREATE MATERIALIZED VIEW IF NOT EXISTS timeline_of_samples TO timeline AS
SELECT toStartOfMinute(ts) AS minute, type, unit, cluster, namespace, workload, pod, container, node, service, instance,
       executable, sum(samples.value) AS value, sum(samples.count) AS count
FROM samples
GROUP BY minute, type, unit, cluster, namespace, workload, pod, container, node, service, instance, executable;
