//! A disk that takes a millisecond longer for each sync: strace delays those calls of a process, and
//! leaves all its other calls alone. Both sides of the comparison are traced.

use super::{Figure, Options};
use crate::{
    report::Workload,
    stores::{Drive, Form, Kind},
};

/// Microseconds by which a sync is delayed.
const DELAYS: [u32; 2] = [0, 1000];

pub(super) fn run(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (form, what) in [
        (Form::Append, "bytes appended and synced in batches"),
        (Form::Raw, "SQLite by hand, in batches"),
        (Form::Calls, "the store, reserve and complete"),
    ] {
        figures.push((form, Figure::new("disk", Kind::File, what, "requests/s")));
    }
    for _ in 0..options.rounds {
        for delay in DELAYS {
            for (form, figure) in &mut figures {
                let folder = tempfile::tempdir()?;
                let drive = Drive {
                    url: format!("file:{}", folder.path().join("bench.db").display()),
                    form: *form,
                    workload: Workload::First,
                    in_flight: options.connections,
                    links: 1,
                    warm_up: (options.seconds / 10.0).min(1.0),
                    seconds: options.seconds,
                    keys: 0,
                };
                let driven = drive.in_a_process(&traced(delay))?;
                let label = format!("sync delayed by {delay} us");
                figure.add(&label, driven.requests as f64 / driven.seconds);
            }
        }
    }
    Ok(figures.into_iter().map(|(_, figure)| figure).collect())
}

fn traced(delay: u32) -> Vec<String> {
    let mut strace = vec!["strace", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null"];
    let inject = format!("inject=fsync,fdatasync:delay_exit={delay}");
    strace.extend(["-e", "trace=fsync,fdatasync"]);
    if delay > 0 {
        strace.extend(["-e", &inject]);
    }
    strace.into_iter().map(str::to_owned).collect()
}
