//! Benchmarks: contestants are interleaved within one run, and compared by ratio. A figure is worth
//! something only with the command that made it.

use std::{fs, path::PathBuf};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

mod all; // everything that is quoted
mod chart; // ratios as bars
mod file;
mod fingerprint;
mod floors; // what is to be reached
mod gateway; // the binary, beside a plain proxy
mod growth; // what becomes dearer as there is more of it
mod instructions; // counted, where time would vary
mod load; // requests over kept-alive connections, from one thread
mod machine; // who else used it during a measurement
mod postgres; // HTTP services on a real PostgreSQL: by hand, and with Onceward
mod process; // contestants, each a process of its own
mod reap; // what the reaper costs those whom it is not about
mod report; // tables and ratios
mod stores; // each store beside its raw limit

use report::{Finding, Output};

/// That of the binary, for all contestants that are built here alike, the plain ones too. Requests begin
/// on one thread and often end on another, which the system's allocator is slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(about = "Measures Onceward beside its yardsticks; everything if no command is given")]
struct Arguments {
    #[command(subcommand)]
    what: Option<What>,
    /// A look at everything, in a few seconds each. Such figures are not to be quoted.
    #[arg(long, global = true)]
    quick: bool,
    /// In which form to print.
    #[arg(short, long, global = true, default_value = "table")]
    output: Output,
    /// Write all that was measured to this file too, as JSON.
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the ratios to this file.
    #[arg(long, global = true, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Subcommand)]
enum What {
    /// Everything that is quoted.
    All,
    /// The fingerprint, beside parsing the same body with serde_json.
    Fingerprint,
    /// The embedded store: requests (reserve and complete) per second, and writes per fsync.
    File {
        /// How many rounds; contestants take turns in each.
        #[arg(long, default_value_t = 5)]
        rounds: u32,
        /// How long each contestant runs in a round, in seconds.
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
    },
    /// Services on PostgreSQL, over HTTP: no idempotency, by hand, others' and Onceward.
    Postgres(postgres::Options),
    /// Onceward on PostgreSQL, over HTTP, with few and with many records in its tables.
    PostgresSize(postgres::size::Options),
    /// The gateway on each store, over HTTP, beside a plain proxy.
    Gateway(gateway::Options),
    /// Each store beside its raw limit: the same work on its engine, without us and without HTTP.
    Stores(stores::Options),
    /// Requests while a million records past their retention are removed, and while they are not; and
    /// how large a store is after each of many retentions.
    Reap(reap::Options),
    /// What becomes dearer: many records, sustained traffic, a hot tenant, a key that many wait for, large
    /// replies, many operations in flight, a slow disk.
    Growth(growth::Options),
    /// Draws what `--json` wrote in earlier runs, as one chart (`--svg`).
    Chart(chart::Options),
    /// Tells which of the floors that we have set ourselves were reached, by what `--json` wrote in earlier
    /// runs. Ends with 1 when one is missed.
    Floors(floors::Options),
    /// Instructions of what every request goes through, under valgrind, beside those that are kept.
    Instructions(instructions::Options),
    /// Part of `instructions`. The benchmark starts it by itself.
    #[command(hide = true)]
    Repeat(instructions::Repeat),
    /// Work without HTTP. The benchmark starts it by itself.
    #[command(hide = true)]
    Drive(stores::Drive),
    /// The plain proxy, until its input ends. The benchmark starts it by itself.
    #[command(hide = true)]
    Proxy(gateway::proxy::Proxy),
    /// One of these services, until its input ends. The benchmark starts it by itself.
    #[command(hide = true)]
    Serve(postgres::Serve),
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut findings = Findings::new(&arguments);
    match &arguments.what {
        None | Some(What::All) => all::run(arguments.quick, &mut findings),
        Some(What::Chart(options)) => {
            let file = arguments.svg.as_deref().context("where to? --svg FILE")?;
            Ok(fs::write(file, chart::redraw(options)?)?)
        }
        Some(What::Floors(options)) => floors::run(options),
        Some(what) => {
            anyhow::ensure!(!arguments.quick, "--quick is for a look at everything");
            match what.run()? {
                Some((name, finding)) => findings.add(name, &*finding),
                None => Ok(()),
            }
        }
    }
}

/// What was found out so far. It is written after each command: a long run may be broken off.
struct Findings<'a> {
    arguments: &'a Arguments,
    found: serde_json::Map<String, Value>,
    bars: Vec<chart::Bar>,
}

impl<'a> Findings<'a> {
    fn new(arguments: &'a Arguments) -> Self {
        Findings { arguments, found: serde_json::Map::new(), bars: vec![] }
    }

    /// A command may come twice, for other numbers of connections. What it found is in one list then, and
    /// the chart is of the first.
    fn keep(&mut self, name: &str, finding: &dyn Finding) -> anyhow::Result<()> {
        let some = finding.json()?;
        match (self.found.get_mut(name), some) {
            (Some(Value::Array(known)), Value::Array(more)) => known.extend(more),
            (_, some) => {
                self.found.insert(name.to_owned(), some);
                self.bars.extend(finding.bars());
            }
        }
        Ok(())
    }

    fn add(&mut self, name: &str, finding: &dyn Finding) -> anyhow::Result<()> {
        match self.arguments.output {
            Output::Table => finding.print(),
            Output::Json => println!("{}", serde_json::to_string_pretty(&finding.json()?)?),
        }
        self.keep(name, finding)?;
        self.found.insert(chart::NAME.to_owned(), serde_json::to_value(&self.bars)?);
        if let Some(file) = &self.arguments.json {
            fs::write(file, serde_json::to_string_pretty(&self.found)?)?;
        }
        if let Some(file) = &self.arguments.svg {
            fs::write(file, chart::svg(&self.bars))?;
        }
        Ok(())
    }
}

/// A name, and what came of it.
type Found = Option<(&'static str, Box<dyn Finding>)>;

impl What {
    fn run(&self) -> anyhow::Result<Found> {
        let found: (_, Box<dyn Finding>) = match self {
            What::Postgres(options) => {
                ("postgres", Box::new(vec![one_thread()?.block_on(postgres::run(options))?]))
            }
            What::PostgresSize(options) => {
                let report = one_thread()?.block_on(postgres::size::run(options))?;
                ("postgres-size", Box::new(vec![report]))
            }
            What::Gateway(options) => {
                ("gateway", Box::new(vec![one_thread()?.block_on(gateway::run(options))?]))
            }
            What::Stores(options) => {
                ("stores", Box::new(one_thread()?.block_on(stores::run(options))?))
            }
            What::Reap(options) => {
                let threads = Builder::new_multi_thread().enable_all().build()?;
                ("reap", Box::new(threads.block_on(reap::run(options))?))
            }
            What::Growth(options) => {
                ("growth", Box::new(two_threads()?.block_on(growth::run(options))?))
            }
            What::Instructions(options) => ("instructions", Box::new(instructions::run(options)?)),
            What::Fingerprint => ("fingerprint", Box::new(fingerprint::run())),
            What::File { rounds, seconds } => {
                let threads = Builder::new_multi_thread().enable_all().build()?;
                ("file", Box::new(threads.block_on(file::run(*rounds, *seconds))?))
            }
            other => return other.be_part().map(|()| None),
        };
        Ok(Some(found))
    }

    /// What the benchmark starts by itself.
    fn be_part(&self) -> anyhow::Result<()> {
        match self {
            What::Repeat(repeat) => instructions::repeat(repeat),
            What::Drive(drive) => two_threads()?.block_on(stores::drive(drive)),
            What::Proxy(proxy) => two_threads()?.block_on(gateway::proxy::serve(proxy)),
            What::Serve(service) => two_threads()?.block_on(postgres::serve(service)),
            _ => Ok(()),
        }
    }
}

/// For the load, so that it takes as little as it can from what it measures.
fn one_thread() -> anyhow::Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// As contestants have them.
fn two_threads() -> anyhow::Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Found(&'static str);

    impl Finding for Found {
        fn print(&self) {}

        fn json(&self) -> serde_json::Result<Value> {
            Ok(serde_json::json!([self.0]))
        }

        fn bars(&self) -> Vec<chart::Bar> {
            let (group, label) = (String::new(), self.0.to_owned());
            vec![chart::Bar {
                group,
                label,
                median: 1.0,
                min: 1.0,
                max: 1.0,
                ours: 1.0,
                other: 1.0,
            }]
        }
    }

    #[test]
    fn a_command_that_comes_twice_is_kept_as_one_list_and_drawn_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("bench.json");
        let words = ["onceward-bench", "--json", file.to_str().expect("text")];
        let arguments = Arguments::parse_from(words);
        let mut findings = Findings::new(&arguments);
        for (name, found) in [("gateway", "64"), ("stores", "file"), ("gateway", "256")] {
            findings.add(name, &Found(found)).expect("kept");
        }
        let text = std::fs::read_to_string(&file).expect("written");
        let written: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(written["gateway"], serde_json::json!(["64", "256"]));
        assert_eq!(written["stores"], serde_json::json!(["file"]));
        let drawn = written[chart::NAME].as_array().expect("bars").iter();
        let drawn: Vec<_> = drawn.filter_map(|bar| bar["label"].as_str()).collect();
        assert_eq!(drawn, ["64", "file"]);
    }
}
