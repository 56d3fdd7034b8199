//! A disk that takes a millisecond longer for each sync: strace delays those calls of whoever writes (this
//! benchmark's own process, or a PostgreSQL that it runs from its beginning), and leaves all its other
//! calls alone. Both sides of the comparison are traced.

use anyhow::ensure;

use super::{Figure, Options};
use crate::{
    postgres::Server,
    report::Workload,
    stores::{Drive, Form, Kind},
};

/// Microseconds by which a sync is delayed.
const DELAYS: [u32; 2] = [0, 1000];

pub(super) async fn run(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for kind in options.stores.iter().copied() {
        match kind {
            Kind::File => figures.extend(file(options)?),
            Kind::Postgres => figures.extend(postgres(options).await?),
            _ => {}
        }
    }
    Ok(figures)
}

fn file(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let figure = |what| Figure::new("disk", Kind::File, what, "requests/s");
    let mut figures = [
        (Form::Append, figure("bytes appended and synced in batches")),
        (Form::Raw, figure("SQLite by hand, in batches")),
        (Form::Calls, figure("the store, reserve and complete")),
    ];
    for _ in 0..options.rounds {
        for delay in DELAYS {
            for (form, figure) in &mut figures {
                let folder = tempfile::tempdir()?;
                let url = format!("file:{}", folder.path().join("bench.db").display());
                let strace = traced(delay, &["-f"]);
                figure.add(&label(delay), driven(options, url, *form, 1, &strace)?);
            }
        }
    }
    Ok(figures.map(|(_, figure)| figure).into())
}

/// On how many connections SQL by hand is batched.
const LINKS: usize = 2;

/// Its name in each server.
const DATABASE: &str = "onceward_bench_disk";

async fn postgres(options: &Options) -> anyhow::Result<Vec<Figure>> {
    ensure!(
        options.postgres.url.is_none(),
        "`disk` delays a server that it starts itself: no --url"
    );
    let figure = |what| Figure::new("disk", Kind::Postgres, what, "requests/s");
    let mut figures = [
        (Form::Raw, figure("SQL by hand, in batches")),
        (Form::Calls, figure("the store, reserve and complete")),
    ];
    let mut servers = Vec::new();
    for delay in DELAYS {
        // -D: the server stays the process that was started, and strace a child of it.
        let strace = traced(delay, &["-D", "-f"]);
        servers.push((delay, Server::new_by(&strace, &options.postgres).await?));
    }
    for _ in 0..options.rounds {
        for (delay, server) in &servers {
            for (form, figure) in &mut figures {
                let url = server.new_database(DATABASE).await?;
                server.settle(&url).await?;
                figure.add(&label(*delay), driven(options, url, *form, LINKS, &[])?);
            }
        }
    }
    Ok(figures.map(|(_, figure)| figure).into())
}

fn label(delay: u32) -> String {
    format!("sync delayed by {delay} us")
}

/// Requests/s of new keys, in a process of its own that this program runs.
fn driven(
    options: &Options,
    url: String,
    form: Form,
    links: usize,
    by: &[String],
) -> anyhow::Result<f64> {
    let drive = Drive {
        url,
        form,
        workload: Workload::First,
        in_flight: options.connections,
        links,
        warm_up: (options.seconds / 10.0).min(1.0),
        seconds: options.seconds,
        keys: 0,
    };
    let driven = drive.in_a_process(by)?;
    Ok(driven.requests as f64 / driven.seconds)
}

/// What traces a program that is named after it, and its children.
fn traced(delay: u32, how: &[&str]) -> Vec<String> {
    let mut strace = vec!["strace"];
    strace.extend(how);
    strace.extend(["--seccomp-bpf", "-qq", "-o", "/dev/null"]);
    let inject = format!("inject=fsync,fdatasync:delay_exit={delay}");
    strace.extend(["-e", "trace=fsync,fdatasync"]);
    if delay > 0 {
        strace.extend(["-e", &inject]);
    }
    strace.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use onceward_testbed::Postgres;

    use super::*;

    /// How long so many commits take, one after the other.
    fn commits(server: &Postgres, count: u32) -> f64 {
        server.psql("postgres", "CREATE TABLE rows (one int)");
        let block = format!(
            "DO $$ BEGIN FOR n IN 1..{count} LOOP INSERT INTO rows VALUES (n); COMMIT; END LOOP; END $$"
        );
        let begun = Instant::now();
        server.psql("postgres", &block);
        begun.elapsed().as_secs_f64()
    }

    #[test]
    fn a_server_that_is_traced_from_its_beginning_has_each_sync_delayed() {
        const LONG: u32 = 20_000;
        let slow = Postgres::start_by(&traced(LONG, &["-D", "-f"]), &[]);
        let delayed = commits(&slow, 50);
        assert!(delayed > 50.0 * f64::from(LONG) / 1e6, "{delayed} s");
        let fast = Postgres::start_by(&traced(0, &["-D", "-f"]), &[]);
        let own = commits(&fast, 50);
        assert!(own < delayed, "{own} s without a delay, {delayed} s with one");
    }
}
