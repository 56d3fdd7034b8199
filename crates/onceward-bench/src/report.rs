//! Figures in, a table or JSON out. Ratios are made round by round, so that the machine's drift
//! cancels out, and only then summarised.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::{
    chart::{Bar, Shown},
    load::{Figures, Load},
    machine::Interference,
    postgres::Settings,
};

/// In which form.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Table,
    /// For programs: every measurement, and the ratios.
    Json,
}

/// What a command found out.
pub(crate) trait Finding {
    /// For people.
    fn print(&self);

    /// For programs.
    fn json(&self) -> serde_json::Result<serde_json::Value>;

    /// For the chart.
    fn bars(&self) -> Vec<Bar>;
}

/// What the load sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// Every request has a new key.
    First,
    /// Every request has a key that was answered before.
    Replay,
}

impl Workload {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::First => "first",
            Workload::Replay => "replay",
        }
    }

    fn headed(self) -> &'static str {
        match self {
            Workload::First => "First executions",
            Workload::Replay => "Replays",
        }
    }
}

/// One contestant, one workload, once.
#[derive(Serialize)]
pub(crate) struct Measurement {
    pub(crate) connections: usize,
    pub(crate) workload: Workload,
    pub(crate) round: u32,
    pub(crate) contestant: String,
    pub(crate) pool: Option<u32>,
    pub(crate) requests: usize,
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// How long the processors worked for the contestant, for each request.
    pub(crate) cpu_us: Option<f64>,
    /// What each record takes in the store.
    pub(crate) bytes: Option<f64>,
    pub(crate) interference: Interference,
}

impl Measurement {
    /// What a load came to; whose and which one is for the caller to say.
    pub(crate) fn of(load: &Load<'_>, figures: &Figures) -> Self {
        Measurement {
            connections: load.connections,
            workload: Workload::First,
            round: 0,
            contestant: String::new(),
            pool: None,
            requests: figures.latencies.len(),
            per_second: figures.latencies.len() as f64 / load.time.as_secs_f64(),
            p50_us: figures.percentile_us(0.5),
            p99_us: figures.percentile_us(0.99),
            cpu_us: figures.worked.map(|worked| worked * 1e6 / figures.latencies.len() as f64),
            bytes: None,
            interference: figures.interference,
        }
    }

    /// The same with what each record takes, of so many that a run of new keys made in an empty place.
    pub(crate) fn with_bytes(self, empty: Option<u64>, full: Option<u64>, made: u64) -> Self {
        let grown = empty.zip(full).filter(|_| made > 0 && self.workload == Workload::First);
        let each = |(empty, full): (u64, u64)| full.saturating_sub(empty) as f64 / made as f64;
        Measurement { bytes: grown.map(each), ..self }
    }

    /// To whoever waits for the report.
    pub(crate) fn announce(&self) {
        let Measurement { connections, round, contestant, per_second, .. } = self;
        let pool = self.pool.map_or(String::new(), |pool| format!(" (pool {pool})"));
        let workload = self.workload.name();
        eprintln!(
            "connections: {connections}, round {}, {workload}, {contestant}{pool}: {per_second:.0}/s",
            round + 1
        );
    }

    /// Share of the machine that was not ours.
    fn others(&self) -> f64 {
        self.interference.foreign + self.interference.steal
    }
}

/// All that was measured, and where.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) postgres: Option<Settings>,
    pub(crate) seconds: f64,
    pub(crate) measurements: Vec<Measurement>,
    ratios: Vec<Ratio>,
    /// Who is compared with whom in the chart.
    #[serde(skip)]
    shown: Vec<Shown>,
    /// Whose ratios are printed: of many contestants not all pairs are of interest.
    #[serde(skip)]
    about: Option<&'static [&'static str]>,
}

/// One contestant by another, in the same rounds.
#[derive(Serialize)]
struct Ratio {
    connections: usize,
    workload: Workload,
    what: &'static str,
    contestant: String,
    to: String,
    median: f64,
    rounds: Vec<f64>,
}

/// Something that is compared.
struct Quantity {
    what: &'static str,
    of: fn(&Measurement) -> f64,
}

const PER_SECOND: Quantity =
    Quantity { what: "requests/s", of: |measurement| measurement.per_second };

const QUANTITIES: [Quantity; 3] = [
    PER_SECOND,
    Quantity { what: "p50", of: |measurement| measurement.p50_us },
    // Not measured everywhere.
    Quantity { what: "CPU", of: |measurement| measurement.cpu_us.unwrap_or(f64::NAN) },
];

impl Report {
    pub(crate) fn new(
        title: impl Into<String>,
        postgres: Option<Settings>,
        seconds: f64,
        measurements: Vec<Measurement>,
    ) -> Self {
        let title = title.into();
        let mut report = Report {
            title,
            postgres,
            seconds,
            measurements,
            ratios: Vec::new(),
            shown: Vec::new(),
            about: None,
        };
        report.ratios =
            report.groups().into_iter().flat_map(|group| report.compare(group)).collect();
        report
    }

    /// The same with these comparisons in the chart.
    pub(crate) fn showing(self, shown: Vec<Shown>) -> Self {
        Report { shown, ..self }
    }

    /// The same, but that tables have only the ratios of these, where one of them took part.
    pub(crate) fn about(self, contestants: &'static [&'static str]) -> Self {
        Report { about: Some(contestants), ..self }
    }

    fn tells_of(&self, ratio: &Ratio) -> bool {
        let takes_part =
            |one: &&str| self.measurements.iter().any(|other| other.contestant == *one);
        let about = self.about.filter(|about| about.iter().any(takes_part));
        about.is_none_or(|about| about.contains(&&*ratio.contestant))
    }

    /// What was measured under the same circumstances, in the order in which it was begun.
    fn groups(&self) -> Vec<(usize, Workload)> {
        let mut groups = Vec::new();
        for measurement in &self.measurements {
            let group = (measurement.connections, measurement.workload);
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        groups.sort_by_key(|(connections, workload)| (std::cmp::Reverse(*connections), *workload));
        groups
    }

    /// In the order of the first round.
    fn contestants(&self, group: (usize, Workload)) -> Vec<&str> {
        let mut contestants = Vec::new();
        for one in self.of(group) {
            if !contestants.contains(&one.contestant.as_str()) {
                contestants.push(&one.contestant);
            }
        }
        contestants
    }

    fn of(&self, group: (usize, Workload)) -> impl Iterator<Item = &Measurement> {
        self.measurements.iter().filter(move |one| (one.connections, one.workload) == group)
    }

    /// Each contestant by each one before it.
    fn compare(&self, group: (usize, Workload)) -> Vec<Ratio> {
        let contestants = self.contestants(group);
        let mut ratios = Vec::new();
        for Quantity { what, of } in &QUANTITIES {
            for (index, contestant) in contestants.iter().enumerate() {
                for to in &contestants[..index] {
                    let rounds: Vec<f64> = self
                        .by_round(group, contestant, of)
                        .zip(self.by_round(group, to, of))
                        .map(|(one, other)| one / other)
                        .collect();
                    if rounds.iter().any(|ratio| ratio.is_nan()) {
                        continue;
                    }
                    ratios.push(Ratio {
                        connections: group.0,
                        workload: group.1,
                        what,
                        contestant: (*contestant).to_owned(),
                        to: (*to).to_owned(),
                        median: median(&rounds),
                        rounds,
                    });
                }
            }
        }
        ratios
    }

    /// Rounds are measured one after the other, so that this is their order.
    fn by_round(
        &self,
        group: (usize, Workload),
        contestant: &str,
        of: &fn(&Measurement) -> f64,
    ) -> impl Iterator<Item = f64> {
        self.of(group).filter(move |one| one.contestant == contestant).map(of)
    }

    fn print_tables(&self) {
        println!("\n== {}", self.title);
        if let Some(Settings { version, shared_buffers, max_wal_size, .. }) = &self.postgres {
            println!(
                "PostgreSQL {version}, fsync and synchronous_commit on, \
                 shared_buffers {shared_buffers}, max_wal_size {max_wal_size}"
            );
        }
        for group in self.groups() {
            self.print_figures(group);
            self.print_ratios(group);
        }
    }

    fn print_figures(&self, group: (usize, Workload)) {
        let (connections, workload) = group;
        println!("\n{}, connections: {connections}, {} s a round", workload.name(), self.seconds);
        println!(
            "{:<18}{:>6}{:>12}{:>20}{:>11}{:>11}{:>11}{:>11}{:>9}",
            "",
            "pool",
            "requests/s",
            "(min - max)",
            "p50 ms",
            "p99 ms",
            "CPU us",
            "bytes",
            "others"
        );
        for contestant in self.contestants(group) {
            let figures = |of: fn(&Measurement) -> f64| -> Vec<f64> {
                self.by_round(group, contestant, &of).collect()
            };
            let rates = figures(|one| one.per_second);
            let pool = self.of(group).find(|one| one.contestant == contestant);
            let pool = pool.and_then(|one| one.pool).map_or(String::new(), |pool| pool.to_string());
            let known =
                |value: f64| if value.is_nan() { String::new() } else { format!("{value:.1}") };
            let cpu = known(median(&figures(|one| one.cpu_us.unwrap_or(f64::NAN))));
            let bytes = known(median(&figures(|one| one.bytes.unwrap_or(f64::NAN))));
            println!(
                "{:<18}{pool:>6}{:>12.0}{:>20}{:>11.3}{:>11.3}{cpu:>11}{bytes:>11}{:>8.0}%",
                contestant,
                median(&rates),
                format!(
                    "{:.0} - {:.0}",
                    rates.iter().copied().fold(f64::INFINITY, f64::min),
                    rates.iter().copied().fold(0.0, f64::max)
                ),
                median(&figures(|one| one.p50_us)) / 1e3,
                median(&figures(|one| one.p99_us)) / 1e3,
                figures(Measurement::others).into_iter().fold(0.0, f64::max) * 100.0,
            );
        }
    }

    fn print_ratios(&self, group: (usize, Workload)) {
        println!("{:<48}{:>8}   by round", "", "median");
        for ratio in &self.ratios {
            if (ratio.connections, ratio.workload) != group || !self.tells_of(ratio) {
                continue;
            }
            let pair = format!("{} / {}", ratio.contestant, ratio.to);
            let rounds: Vec<String> =
                ratio.rounds.iter().map(|ratio| format!("{ratio:.2}")).collect();
            println!("{:<12}{pair:<36}{:>8.2}   {}", ratio.what, ratio.median, rounds.join(" "));
        }
    }
}

/// How many connections the chart is about, if there are several numbers.
const CHARTED: usize = 64;

impl Finding for Vec<Report> {
    fn print(&self) {
        self.iter().for_each(Report::print_tables);
    }

    fn json(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(self)
    }

    fn bars(&self) -> Vec<Bar> {
        self.iter().flat_map(Report::bars).collect()
    }
}

impl Report {
    fn bars(&self) -> Vec<Bar> {
        let has = |number| self.ratios.iter().any(|ratio| ratio.connections == number);
        let is_charted = |ratio: &&Ratio| {
            ratio.what == PER_SECOND.what && (ratio.connections == CHARTED || !has(CHARTED))
        };
        let bar = |ratio: &Ratio| {
            let is_it =
                |shown: &&Shown| (shown.ours, shown.other) == (&*ratio.contestant, &*ratio.to);
            let shown = self.shown.iter().find(is_it)?;
            let rate = |contestant| {
                let group = (ratio.connections, ratio.workload);
                let rates: Vec<f64> = self.by_round(group, contestant, &PER_SECOND.of).collect();
                median(&rates)
            };
            Some(Bar {
                group: format!("{} {}", ratio.workload.headed(), shown.group),
                label: shown.label.to_owned(),
                median: ratio.median,
                min: ratio.rounds.iter().copied().fold(f64::INFINITY, f64::min),
                max: ratio.rounds.iter().copied().fold(0.0, f64::max),
                ours: rate(shown.ours),
                other: rate(shown.other),
            })
        };
        self.ratios.iter().filter(is_charted).filter_map(bar).collect()
    }
}

/// The middle one, or the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.as_slice() {
        [] => f64::NAN,
        all if all.len() % 2 == 1 => all[middle],
        all => f64::midpoint(all[middle - 1], all[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(contestant: &str, round: u32, per_second: f64) -> Measurement {
        Measurement {
            connections: 64,
            workload: Workload::First,
            round,
            contestant: contestant.to_owned(),
            pool: None,
            requests: 1,
            per_second,
            p50_us: 1.0,
            p99_us: 1.0,
            cpu_us: None,
            bytes: None,
            interference: Interference { foreign: 0.0, steal: 0.0 },
        }
    }

    #[test]
    fn bytes_are_told_of_records_that_were_made_and_counted() {
        let first = || measured("one", 0, 1.0);
        assert_eq!(first().with_bytes(Some(1000), Some(5000), 20).bytes, Some(200.0));
        assert_eq!(first().with_bytes(Some(1000), Some(5000), 0).bytes, None, "none was made");
        assert_eq!(first().with_bytes(None, None, 20).bytes, None, "nobody counts them");
        let replay = Measurement { workload: Workload::Replay, ..first() };
        assert_eq!(replay.with_bytes(Some(1000), Some(5000), 20).bytes, None);
    }

    #[test]
    fn a_report_about_some_tells_of_all_where_none_of_them_took_part() {
        let measurements =
            || vec![measured("a", 0, 1.0), measured("b", 0, 2.0), measured("c", 0, 3.0)];
        let told = |about| {
            let report = Report::new("", None, 1.0, measurements()).about(about);
            let told = report.ratios.iter().filter(|ratio| report.tells_of(ratio));
            let told = told.filter(|ratio| ratio.what == PER_SECOND.what);
            told.map(|ratio| format!("{} / {}", ratio.contestant, ratio.to)).collect::<Vec<_>>()
        };
        assert_eq!(told(&["c"]), ["c / a", "c / b"]);
        assert_eq!(told(&["d"]), ["b / a", "c / a", "c / b"]);
    }

    #[test]
    fn ratios_are_made_within_a_round_whatever_its_order() {
        let measurements = vec![
            measured("slow", 0, 10.0),
            measured("fast", 0, 20.0),
            measured("fast", 1, 120.0),
            measured("slow", 1, 40.0),
        ];
        let report = Report::new("", None, 1.0, measurements);
        let ratio = &report.ratios[0];
        assert_eq!((&*ratio.contestant, &*ratio.to, ratio.what), ("fast", "slow", "requests/s"));
        assert_eq!(ratio.rounds, [2.0, 3.0]);
        assert_eq!(ratio.median, 2.5);
        assert!(report.ratios.iter().all(|ratio| ratio.what != "CPU"), "it was not measured");
        assert!(report.bars().is_empty(), "nothing is to be shown");
        let shown = Shown { ours: "fast", other: "slow", group: "here", label: "the slow one" };
        let bars = report.showing(vec![shown]).bars();
        assert_eq!(bars.len(), 1);
        assert_eq!((&*bars[0].group, &*bars[0].label), ("First executions here", "the slow one"));
        assert_eq!((bars[0].ours, bars[0].other), (70.0, 25.0));
        assert_eq!((bars[0].median, bars[0].min, bars[0].max), (2.5, 2.0, 3.0));
    }
}
