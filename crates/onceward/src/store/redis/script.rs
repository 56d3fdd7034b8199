//! The scripts. Each is one atomic step on the keys of one bucket.

/// A script, by its place in [`SOURCES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    Reserve,
    Write,
    Look,
    Change,
    Due,
    Line,
    Range,
    Stats,
    Purge,
    Value,
    Pulse,
    Beat,
    Recall,
}

/// The server decides before a script begins whether it may run at all: not when it is read-only, has
/// too few replicas, or, but for those that may exceed it, no memory left. So none stops half way.
macro_rules! source {
    ($flags:literal, $($file:literal),+) => {
        concat!($flags, include_str!("lua/common.lua"), $(include_str!(concat!("lua/", $file))),+)
    };
}

/// Only what takes more and more memory is refused when there is none: an end must always be written.
pub(super) const SOURCES: [&str; 13] = [
    source!("#!lua\n", "evicted.lua", "reserve.lua"),
    source!("#!lua flags=allow-oom\n", "write.lua"),
    source!("#!lua flags=allow-oom\n", "look.lua"),
    source!("#!lua flags=allow-oom\n", "evicted.lua", "change.lua"),
    source!("#!lua flags=allow-oom\n", "due.lua"),
    source!("#!lua flags=allow-oom\n", "line.lua"),
    source!("#!lua flags=allow-oom\n", "range.lua"),
    source!("#!lua flags=allow-oom\n", "stats.lua"),
    source!("#!lua flags=allow-oom\n", "purge.lua"),
    source!("#!lua flags=allow-oom\n", "value.lua"),
    source!("#!lua flags=allow-oom\n", "pulse.lua"),
    source!("#!lua flags=allow-oom\n", "beat.lua"),
    source!("#!lua flags=allow-oom\n", "recall.lua"),
];

/// What a script hears of evictions. Asked at the start alone, so that it is not loaded with the others:
/// over a long way each part of what is sent takes its time.
pub(super) const EVICTED: &str =
    concat!("#!lua flags=no-writes\n", include_str!("lua/evicted.lua"), "return evicted()");
