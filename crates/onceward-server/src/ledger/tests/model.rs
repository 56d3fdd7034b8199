//! The rules once more, as plain sentences over whole lists.

use rand::{RngExt as _, rngs::StdRng};

use super::{At, Charge, Claim, Entry, Finding, INSIDE, Kind, Source, Standing};
use onceward::clock::Timestamp;

fn maybe(random: &mut StdRng, names: &[&str]) -> Option<String> {
    let place = random.random_range(0..=names.len());
    names.get(place).map(|name| (*name).to_owned())
}

fn time(random: &mut StdRng) -> Option<i64> {
    [None, Some(50), Some(150), Some(150)][random.random_range(0..4)]
}

pub(super) fn entry(random: &mut StdRng, number: usize) -> At<Entry> {
    let states = [
        Standing::Completed,
        Standing::Completed,
        Standing::Unknown,
        Standing::FailedRetryable,
        Standing::Expired,
        Standing::Done,
    ];
    let state = states[random.random_range(0..states.len())];
    let charged = matches!(state, Standing::Completed | Standing::Done);
    let noted = !charged || random.random_bool(0.3);
    let key = ["k1", "k2", "k3"][random.random_range(0..3)].to_owned();
    let entry = Entry {
        record: ["r1", "r2", "r3", "r4"][random.random_range(0..4)].to_owned(),
        scope: String::new(),
        generation: 1,
        source: if state == Standing::Done { Source::Message } else { Source::Operation },
        state,
        status: Some([201, 402][random.random_range(0..2)]),
        provider_id: maybe(random, &["c1", "c2", "c3", "c4", "c5"]),
        noted,
        sent_key: Some(key.clone()).filter(|_| random.random_bool(0.9)),
        key,
        amount: maybe(random, &["1", "1.0", "2"]).map(|text| text.parse().expect("an amount")),
        currency: maybe(random, &["EUR", "eur", "USD"]),
        // Tells one from another.
        at: Some(number.to_string()),
    };
    (entry, time(random))
}

pub(super) fn charge(random: &mut StdRng, number: u64, keys: bool) -> At<Charge> {
    let ids = ["c1", "c2", "c3", "c4", "c5", "c6"];
    let charge = Charge {
        line: number,
        id: ids[random.random_range(0..ids.len())].to_owned(),
        key: maybe(random, &["k1", "k2", "k3"]).filter(|_| keys),
        amount: maybe(random, &["1", "1.00", "2"]).map(|text| text.parse().expect("an amount")),
        currency: maybe(random, &["EUR", "eur", "USD"]),
        at: None,
    };
    (charge, time(random))
}

fn say(kind: Kind, theirs: &[&Charge], ours: &[&Entry]) -> String {
    let lines: Vec<u64> = theirs.iter().map(|charge| charge.line).collect();
    let mut tags: Vec<&str> = ours.iter().filter_map(|entry| entry.at.as_deref()).collect();
    tags.sort_unstable();
    let mut lines = lines;
    lines.sort_unstable();
    format!("{} {lines:?} {tags:?}", kind.name())
}

pub(super) fn told(finding: &Finding) -> String {
    let (theirs, ours): (Vec<_>, Vec<_>) =
        (finding.theirs.iter().collect(), finding.ours.iter().collect());
    say(finding.kind, &theirs, &ours)
}

fn inside(at: Option<i64>) -> bool {
    at.is_none_or(|at| INSIDE.contains(Timestamp::from_micros(at)))
}

/// What is to be told, sorted.
pub(super) fn expected(ours: &[At<Entry>], theirs: &[At<Charge>], keys: bool) -> Vec<String> {
    let mut told = Vec::new();
    // The first row of each id counts.
    let is_first = |n: usize| !theirs[..n].iter().any(|(it, _)| it.id == theirs[n].0.id);
    let rows: Vec<&At<Charge>> =
        (0..theirs.len()).filter(|n| is_first(*n)).map(|n| &theirs[n]).collect();
    let with_id = |id: &str| -> Vec<&At<Entry>> {
        ours.iter().filter(|(it, _)| it.provider_id.as_deref() == Some(id)).collect()
    };
    let operations = |of: &[&At<Entry>]| {
        let mut uses: Vec<(&str, &str)> =
            of.iter().map(|(it, _)| (it.record.as_str(), it.key.as_str())).collect();
        uses.sort_unstable();
        uses.dedup();
        uses.len()
    };
    for id in ["c1", "c2", "c3", "c4", "c5", "c6"] {
        let claiming = with_id(id);
        let all: Vec<&At<Charge>> = theirs.iter().filter(|(it, _)| it.id == id).collect();
        let any =
            claiming.iter().any(|(_, at)| inside(*at)) || all.iter().any(|(_, at)| inside(*at));
        let entries: Vec<&Entry> = claiming.iter().map(|(it, _)| it).collect();
        let charges: Vec<&Charge> = all.iter().map(|(it, _)| it).collect();
        if all.len() > 1 && any {
            told.push(say(Kind::RepeatedThere, &charges, &entries));
        }
        let first = &charges[..charges.len().min(1)];
        if operations(&claiming) > 1 && any {
            told.push(say(Kind::RepeatedHere, first, &entries));
        }
        let charged = claiming.iter().filter(|(it, _)| it.claim() == Claim::Charged);
        if charges.is_empty() && charged.clone().any(|(_, at)| inside(*at)) {
            let entries: Vec<&Entry> = charged.map(|(it, _)| it).collect();
            told.push(say(Kind::MissingThere, &[], &entries));
        }
        if let Some((row, row_at)) = all.first() {
            for (entry, at) in claiming {
                match entry.claim() {
                    _ if !inside(*at) && !inside(*row_at) => {}
                    Claim::Open => told.push(say(Kind::Unsettled, &[row], &[entry])),
                    Claim::NotCharged => told.push(say(Kind::Contradicted, &[row], &[entry])),
                    Claim::Charged | Claim::Forgotten => told.extend(money(entry, row)),
                }
            }
            if entries.is_empty() && row.key.is_none() && any {
                told.push(say(Kind::MissingHere, &[row], &[]));
            }
        }
    }
    for key in ["k1", "k2", "k3"] {
        let charged: Vec<&&At<Charge>> =
            rows.iter().filter(|(it, _)| keys && it.key.as_deref() == Some(key)).collect();
        let mut known: Vec<&At<Entry>> =
            ours.iter().filter(|(it, _)| it.sent_key.as_deref() == Some(key)).collect();
        if charged.len() > operations(&known).max(1) {
            if charged.iter().any(|(_, at)| inside(*at)) || known.iter().any(|(_, at)| inside(*at))
            {
                let entries: Vec<&Entry> = known.iter().map(|(it, _)| it).collect();
                let charges: Vec<&Charge> = charged.iter().map(|(it, _)| it).collect();
                told.push(say(Kind::DoubleCharge, &charges, &entries));
            }
            continue;
        }
        known.retain(|(it, _)| !is_matched(it, &rows));
        // Among equals the smallest id explains best.
        known.sort_by_key(|(it, _)| it.provider_id.clone());
        told.extend(of_key(&charged, known, &with_id));
    }
    let keyless = ours.iter().filter(|(it, _)| it.sent_key.is_none());
    for (entry, at) in keyless.filter(|(it, _)| !is_matched(it, &rows)) {
        told.extend(alone(entry, *at));
    }
    told.sort();
    told
}

/// Whether the provider has its id.
fn is_matched(entry: &Entry, rows: &[&At<Charge>]) -> bool {
    entry.provider_id.as_deref().is_some_and(|id| rows.iter().any(|(row, _)| row.id == id))
}

fn of_key<'l>(
    charged: &[&&At<Charge>],
    mut known: Vec<&At<Entry>>,
    with_id: &impl Fn(&str) -> Vec<&'l At<Entry>>,
) -> Vec<String> {
    let mut told = Vec::new();
    for (row, row_at) in charged.iter().filter(|(row, _)| with_id(&row.id).is_empty()) {
        let order = [
            (Claim::Charged, Some(false)),
            (Claim::Forgotten, None),
            (Claim::Open, None),
            (Claim::NotCharged, None),
            (Claim::Charged, Some(true)),
        ];
        let best = order.into_iter().find_map(|(claim, with_id)| {
            let fits = |it: &Entry| with_id.is_none_or(|with| it.provider_id.is_some() == with);
            known.iter().position(|(it, _)| it.claim() == claim && fits(it))
        });
        let Some(best) = best else {
            if inside(*row_at) {
                told.push(say(Kind::MissingHere, &[row], &[]));
            }
            continue;
        };
        let (entry, at) = known.remove(best);
        let any = inside(*at) || inside(*row_at);
        match (entry.claim(), &entry.provider_id) {
            _ if !any => {}
            (Claim::Charged, Some(_)) => told.push(say(Kind::MissingHere, &[row], &[entry])),
            (Claim::Charged | Claim::Forgotten, _) => told.extend(money(entry, row)),
            (Claim::Open, _) => told.push(say(Kind::Unsettled, &[row], &[entry])),
            (Claim::NotCharged, _) => told.push(say(Kind::Contradicted, &[row], &[entry])),
        }
    }
    told.extend(known.iter().filter_map(|(entry, at)| alone(entry, *at)));
    told
}

fn alone(entry: &Entry, at: Option<i64>) -> Option<String> {
    if !inside(at) {
        return None;
    }
    match entry.claim() {
        Claim::Charged if entry.provider_id.is_some() => None,
        Claim::Charged => Some(say(Kind::IncompleteHere, &[], &[entry])),
        Claim::Open => Some(say(Kind::Open, &[], &[entry])),
        _ => None,
    }
}

fn money(entry: &Entry, row: &Charge) -> Option<String> {
    let upper = |text: &Option<String>| text.as_deref().map(str::to_ascii_uppercase);
    let currencies = (upper(&entry.currency), upper(&row.currency));
    let other_currency = matches!(&currencies, (Some(a), Some(b)) if a != b);
    let other_amount = matches!((entry.amount, row.amount), (Some(a), Some(b)) if a != b);
    if other_currency || other_amount {
        return Some(say(Kind::DifferentAmount, &[row], &[entry]));
    }
    let bare = entry.amount.is_none() && row.amount.is_some();
    let owes = entry.source == Source::Operation && entry.claim() == Claim::Charged;
    (bare && owes).then(|| say(Kind::IncompleteHere, &[row], &[entry]))
}
