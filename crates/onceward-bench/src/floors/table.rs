//! All floors. Runs have to be on two cores.

use super::{
    Bound::{self, AtLeast, AtMost},
    Floor, Of,
};
use crate::report::Workload::{self, First, Replay};

/// Requests a second of one contestant by those of another.
const fn rate(
    about: &'static str,
    (command, title, connections, workload): (&'static str, &'static str, usize, Workload),
    (ours, other): (&'static str, &'static str),
    bound: Bound,
) -> Floor {
    quantity(about, (command, title, connections, workload), "requests/s", (ours, other), bound)
}

const fn quantity(
    about: &'static str,
    (command, title, connections, workload): (&'static str, &'static str, usize, Workload),
    what: &'static str,
    (ours, other): (&'static str, &'static str),
    bound: Bound,
) -> Floor {
    let ratio = Of::Contestants { command, title, connections, workload, what, ours, other };
    Floor { about, ratio, bound, aim: None }
}

/// Services on PostgreSQL.
const fn services(
    about: &'static str,
    (connections, workload): (usize, Workload),
    pair: (&'static str, &'static str),
    bound: Bound,
) -> Floor {
    rate(about, ("postgres", "postgres", connections, workload), pair, bound)
}

/// The time that half of the requests take at most, one at a time.
const fn alone(about: &'static str, workload: Workload, other: &'static str) -> Floor {
    let run = ("postgres", "postgres", 1, workload);
    quantity(about, run, "p50", ("onceward", other), AtMost(1.1))
}

const fn rows(
    about: &'static str,
    (store, what): (&'static str, &'static str),
    (row, base): (&'static str, &'static str),
    bound: Bound,
) -> Floor {
    Floor { about, ratio: Of::Rows { store, what, row, base }, bound, aim: None }
}

const fn aiming(aim: f64, floor: Floor) -> Floor {
    Floor { aim: Some(aim), ..floor }
}

const SQLX: (&str, &str) = ("onceward", "sqlx");
const TOKIO_POSTGRES: (&str, &str) = ("onceward", "tokio-postgres");
const RESTATE: (&str, &str) = ("onceward", "restate");

/// What a request costs where there are many records, by the same where there are few.
const MANY_BY_FEW: (&str, &str) = ("10000000 records", "100000 records");
/// The same by requests a second, which are fewer where they cost more.
const FEW_BY_MANY: (&str, &str) = ("100000 records", "10000000 records");

pub(super) const FLOORS: &[Floor] = &[
    aiming(
        5.0,
        services(
            "PostgreSQL, 64 connections, first executions by sqlx",
            (64, First),
            SQLX,
            AtLeast(3.0),
        ),
    ),
    services(
        "PostgreSQL, 64 connections, first executions by tokio-postgres",
        (64, First),
        TOKIO_POSTGRES,
        AtLeast(2.0),
    ),
    aiming(
        6.0,
        services("PostgreSQL, 64 connections, replays by sqlx", (64, Replay), SQLX, AtLeast(4.0)),
    ),
    services(
        "PostgreSQL, 64 connections, replays by tokio-postgres",
        (64, Replay),
        TOKIO_POSTGRES,
        AtLeast(2.5),
    ),
    services(
        "PostgreSQL, 256 connections, first executions by tokio-postgres",
        (256, First),
        TOKIO_POSTGRES,
        AtLeast(3.0),
    ),
    alone("PostgreSQL, 1 connection, p50 of first executions by sqlx", First, "sqlx"),
    alone(
        "PostgreSQL, 1 connection, p50 of first executions by tokio-postgres",
        First,
        "tokio-postgres",
    ),
    alone("PostgreSQL, 1 connection, p50 of replays by sqlx", Replay, "sqlx"),
    alone("PostgreSQL, 1 connection, p50 of replays by tokio-postgres", Replay, "tokio-postgres"),
    services(
        "PostgreSQL, 64 connections, first executions by Restate",
        (64, First),
        RESTATE,
        AtLeast(2.5),
    ),
    services("PostgreSQL, 64 connections, replays by Restate", (64, Replay), RESTATE, AtLeast(2.0)),
    aiming(
        0.6,
        rate(
            "PostgreSQL, first executions over HTTP by raw batched SQL",
            ("stores", "stores: postgres", 64, First),
            ("http", "raw"),
            AtLeast(0.4),
        ),
    ),
    aiming(
        0.7,
        rate(
            "file, first executions over HTTP by raw SQLite group commit",
            ("stores", "stores: file", 64, First),
            ("http", "raw"),
            AtLeast(0.5),
        ),
    ),
    services(
        "file, first executions by sqlx (on PostgreSQL)",
        (64, First),
        ("onceward-file", "sqlx"),
        AtLeast(2.0),
    ),
    services(
        "file, first executions by Restate",
        (64, First),
        ("onceward-file", "restate"),
        AtLeast(2.0),
    ),
    rate(
        "file, replays by plain axum",
        ("stores", "stores: file", 64, Replay),
        ("http", "echo"),
        AtLeast(0.4),
    ),
    rows(
        "file, pairs of reserve and complete at 10^6 records by an empty one",
        ("file", "reserve and complete"),
        // Times, so that what was faster is above.
        ("empty", "1000000 records"),
        AtLeast(0.6),
    ),
    rate(
        "memory, first executions of the library by plain axum",
        ("stores", "stores: memory", 64, First),
        ("http", "echo"),
        AtLeast(0.75),
    ),
    rate(
        "memory, replays of the library by plain axum",
        ("stores", "stores: memory", 64, Replay),
        ("http", "echo"),
        AtLeast(0.75),
    ),
    rate(
        "memory, first executions through the gateway by a plain proxy",
        ("gateway", "gateway", 64, First),
        ("memory", "proxy"),
        AtLeast(0.8),
    ),
    rate(
        "memory, replays by the gateway by a plain proxy",
        ("gateway", "gateway", 64, Replay),
        ("memory", "proxy"),
        AtLeast(0.9),
    ),
    quantity(
        "CPU of a request on an unprotected route by a plain proxy",
        ("gateway", "gateway", 64, First),
        "CPU",
        ("unprotected", "proxy"),
        AtMost(1.1),
    ),
    rate(
        "PostgreSQL, cost of a first execution at 10^7 records by 10^5, over HTTP",
        ("postgres-size", "postgres-size", 64, First),
        FEW_BY_MANY,
        AtMost(1.3),
    ),
    rate(
        "PostgreSQL, cost of a replay at 10^7 records by 10^5, over HTTP",
        ("postgres-size", "postgres-size", 64, Replay),
        FEW_BY_MANY,
        AtMost(1.3),
    ),
    rows(
        "PostgreSQL, cost of reserve and complete at 10^7 records by 10^5",
        ("postgres", "reserve and complete"),
        MANY_BY_FEW,
        AtMost(1.3),
    ),
    rows(
        "PostgreSQL, cost of a replay at 10^7 records by 10^5",
        ("postgres", "replay"),
        MANY_BY_FEW,
        AtMost(1.3),
    ),
];
