use std::{cell::RefCell, collections::BTreeSet};

use onceward::{clock::Timestamp, store::list::Span};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

use super::{
    Charge, Check, Claim, Columns, Entry, Export, Finding, Format, Kind, OwnFile, Summary,
    entry::{Source, Standing},
};

mod model; // the same told in another way, for few rows
mod own; // what a store knows

fn entry(key: &str, id: Option<&str>, amount: Option<&str>) -> Entry {
    Entry {
        record: format!("record of {key}"),
        scope: "acme".to_owned(),
        key: key.to_owned(),
        generation: 1,
        source: Source::Operation,
        state: Standing::Completed,
        status: Some(201),
        provider_id: id.map(str::to_owned),
        noted: false,
        sent_key: Some(key.to_owned()),
        amount: amount.map(|amount| amount.parse().expect("an amount")),
        currency: None,
        at: None,
    }
}

fn charge(line: u64, id: &str, key: Option<&str>, amount: Option<&str>) -> Charge {
    Charge {
        line,
        id: id.to_owned(),
        key: key.map(str::to_owned),
        amount: amount.map(|amount| amount.parse().expect("an amount")),
        currency: None,
        at: None,
    }
}

/// An entry or a charge, and when.
type At<T> = (T, Option<i64>);

const INSIDE: Span =
    Span { from: Some(Timestamp::from_micros(100)), before: Some(Timestamp::from_micros(200)) };

fn checked(ours: &[At<Entry>], theirs: &[At<Charge>], keys: bool) -> (Summary, Vec<Finding>) {
    let found = RefCell::new(Vec::new());
    let tell = |finding: &Finding| {
        found.borrow_mut().push(finding.clone());
        Ok(())
    };
    let mut check = Check::new(&std::env::temp_dir(), INSIDE, keys, tell).expect("a folder");
    for (entry, at) in ours {
        check.ours(entry.clone(), at.map(Timestamp::from_micros)).expect("added");
    }
    for (charge, at) in theirs {
        check.theirs(charge.clone(), at.map(Timestamp::from_micros)).expect("added");
    }
    let summary = check.finish(|_| {}).expect("compared");
    (summary, found.into_inner())
}

/// Kinds with the ids and keys that they are about.
fn told(ours: &[Entry], theirs: &[Charge]) -> Vec<String> {
    let ours: Vec<At<Entry>> = ours.iter().map(|entry| (entry.clone(), None)).collect();
    let theirs: Vec<At<Charge>> = theirs.iter().map(|charge| (charge.clone(), None)).collect();
    let (summary, found) = checked(&ours, &theirs, true);
    assert_eq!(summary.agree, found.iter().all(|finding| finding.kind == Kind::Open));
    assert_eq!(summary.findings.values().sum::<u64>(), found.len() as u64);
    let mut told: Vec<String> = found.iter().map(line).collect();
    told.sort();
    told
}

fn line(finding: &Finding) -> String {
    let theirs = finding.theirs.iter().map(|it| it.id.as_str());
    let ours = finding.ours.iter().map(|it| it.key.as_str());
    let both: Vec<&str> = theirs.chain(ours).collect();
    format!("{} {}", finding.kind.name(), both.join(" "))
}

#[test]
fn sides_that_agree_have_nothing_to_tell() {
    let ours = [entry("k1", Some("c1"), Some("10")), entry("k2", Some("c2"), Some("0.50"))];
    let theirs =
        [charge(2, "c2", Some("k2"), Some("0.5")), charge(3, "c1", Some("k1"), Some("10.00"))];
    assert_eq!(told(&ours, &theirs), [""; 0]);
}

#[test]
fn what_one_side_alone_has_and_other_amounts_are_told() {
    let ours = [entry("k1", Some("c1"), Some("10")), entry("k2", Some("c2"), Some("7"))];
    let theirs = [charge(2, "c3", None, Some("5")), charge(3, "c1", None, Some("10.01"))];
    let expected = ["different_amount c1 k1", "missing_here c3", "missing_there k2"];
    assert_eq!(told(&ours, &theirs), expected);
    let euros = Entry { currency: Some("eur".to_owned()), ..entry("k1", Some("c1"), Some("10")) };
    let of = |currency: &str| {
        let currency = Some(currency.to_owned());
        Charge { currency, ..charge(2, "c1", None, Some("10")) }
    };
    assert_eq!(told(std::slice::from_ref(&euros), &[of("USD")]), ["different_amount c1 k1"]);
    assert_eq!(told(&[euros], &[of("EUR")]), [""; 0]);
}

#[test]
fn two_charges_under_one_key_are_a_double_charge_whether_or_not_we_know_one_of_them() {
    let theirs = [charge(2, "c1", Some("k1"), None), charge(3, "c2", Some("k1"), None)];
    assert_eq!(told(&[entry("k1", Some("c1"), None)], &theirs), ["double_charge c1 c2 k1"]);
    assert_eq!(told(&[], &theirs), ["double_charge c1 c2"]);
    // Another tenant may use the same key for a charge of its own.
    let other = Entry { scope: "other".to_owned(), ..entry("k1", Some("c2"), None) };
    assert_eq!(told(&[entry("k1", Some("c1"), None), other], &theirs), [""; 0]);
}

#[test]
fn an_id_that_was_noted_tells_of_what_is_open_and_of_what_did_not_charge() {
    let noted = |state, status| {
        let entry = entry("k1", Some("c1"), None);
        vec![Entry { noted: true, sent_key: None, state, status, ..entry }]
    };
    let there = [charge(2, "c1", None, None)];
    let absent: [Charge; 0] = [];
    for (state, status, with_charge, without) in [
        (Standing::Completed, Some(201), None, Some("missing_there k1")),
        (Standing::Completed, Some(402), Some("contradicted c1 k1"), None),
        (Standing::FailedRetryable, None, Some("contradicted c1 k1"), None),
        (Standing::Unknown, None, Some("unsettled c1 k1"), Some("open k1")),
        (Standing::InProgress, None, Some("unsettled c1 k1"), Some("open k1")),
        (Standing::Expired, Some(201), None, None),
    ] {
        let told_of = |theirs: &[Charge]| told(&noted(state, status), theirs);
        assert_eq!(told_of(&there), Vec::from_iter(with_charge), "{state:?} {status:?}");
        assert_eq!(told_of(&absent), Vec::from_iter(without), "{state:?} {status:?}");
    }
    // Under a key that the provider has another charge of.
    let open = Entry {
        noted: true,
        state: Standing::Unknown,
        status: None,
        ..entry("k1", Some("c1"), None)
    };
    assert_eq!(told(&[open], &[charge(2, "c9", Some("k1"), None)]), ["unsettled c9 k1"]);
}

#[test]
fn a_charge_is_told_with_what_we_know_under_its_key() {
    let theirs = [charge(2, "c1", Some("k1"), None)];
    let standing = |state, status| Entry { state, status, ..entry("k1", None, None) };
    for (state, status, expected) in [
        (Standing::Unknown, None, &["unsettled c1 k1"][..]),
        (Standing::InProgress, None, &["unsettled c1 k1"]),
        (Standing::Dead, None, &["unsettled c1 k1"]),
        (Standing::FailedRetryable, None, &["contradicted c1 k1"]),
        (Standing::Completed, Some(402), &["contradicted c1 k1"]),
        // Its id is gone or was never told, and its key is enough.
        (Standing::Expired, Some(201), &[]),
        (Standing::Completed, Some(201), &[]),
    ] {
        assert_eq!(told(&[standing(state, status)], &theirs), expected, "{state:?}");
    }
    let other_id = ["missing_here c1 k1", "missing_there k1"];
    assert_eq!(told(&[entry("k1", Some("c9"), None)], &theirs), other_id);
}

#[test]
fn without_its_charge_an_open_entry_is_told_and_one_that_was_not_charged_is_not() {
    let standing = |state, status| Entry { state, status, ..entry("k1", None, None) };
    assert_eq!(told(&[standing(Standing::Unknown, None)], &[]), ["open k1"]);
    assert_eq!(told(&[standing(Standing::Completed, Some(402))], &[]), [""; 0]);
    assert_eq!(told(&[standing(Standing::FailedRetryable, None)], &[]), [""; 0]);
    assert_eq!(told(&[standing(Standing::Completed, Some(201))], &[]), ["incomplete_here k1"]);
    assert_eq!(told(&[standing(Standing::Done, None)], &[]), ["incomplete_here k1"]);
}

#[test]
fn an_id_that_is_there_twice_is_told_on_the_side_that_has_it_twice() {
    let one = entry("k1", Some("c1"), None);
    let rows = [charge(2, "c1", None, None), charge(9, "c1", None, None)];
    assert_eq!(told(std::slice::from_ref(&one), &rows), ["repeated_there c1 c1 k1"]);
    let two = [one.clone(), entry("k2", Some("c1"), None)];
    assert_eq!(told(&two, &rows[..1]), ["repeated_here c1 k1 k2"]);
    // An operation and the message that it staged are one.
    let message = Entry { source: Source::Message, state: Standing::Done, ..one.clone() };
    assert_eq!(told(&[one, message], &rows[..1]), [""; 0]);
}

#[test]
fn an_operation_without_an_amount_is_not_taken_for_equal() {
    let theirs = [charge(2, "c1", None, Some("10"))];
    let bare = entry("k1", Some("c1"), None);
    assert_eq!(told(std::slice::from_ref(&bare), &theirs), ["incomplete_here c1 k1"]);
    let message = Entry { source: Source::Message, state: Standing::Done, ..bare };
    let (summary, found) = checked(&[(message, None)], &[(theirs[0].clone(), None)], true);
    assert!(found.is_empty() && summary.amounts_not_compared == 1, "{summary:?}");
}

#[test]
fn what_stands_outside_the_period_finds_its_half_and_is_not_missed_alone() {
    let ours = |id: &str, at: i64| (entry(id, Some(id), None), Some(at));
    let theirs = |id: &str, at: i64| (charge(2, id, None, None), Some(at));
    let lines = |ours: &[At<Entry>], theirs: &[At<Charge>]| {
        let (summary, found) = checked(ours, theirs, false);
        (found.iter().map(line).collect::<Vec<_>>(), summary.outside)
    };
    // The other half is just behind the border.
    assert_eq!(lines(&[ours("c1", 99)], &[theirs("c1", 100)]), (vec![], 0));
    assert_eq!(lines(&[ours("c1", 200)], &[theirs("c1", 199)]), (vec![], 0));
    assert_eq!(lines(&[ours("c1", 99)], &[theirs("c2", 200)]), (vec![], 2));
    let both = (vec!["missing_here c2".to_owned(), "missing_there c1".to_owned()], 0);
    let mut found = lines(&[ours("c1", 100)], &[theirs("c2", 199)]);
    found.0.sort();
    assert_eq!(found, both);
}

fn export(format: Format, text: &str, columns: Columns) -> anyhow::Result<Vec<Charge>> {
    let mut read = Vec::new();
    let export = Export { format, columns, lookup_key: None };
    let rows = export.read(text.as_bytes(), |row, _| {
        read.extend(row.map(|(charge, _)| charge));
        Ok(())
    });
    rows.map(|()| read)
}

fn columns(more: &[(&str, &str)]) -> Columns {
    let mut columns = Columns { id: "id".to_owned(), ..Columns::default() };
    for (what, name) in more {
        let name = Some((*name).to_owned());
        match *what {
            "amount" => columns.amount = name,
            "currency" => columns.currency = name,
            "key" => columns.key = name,
            "time" => columns.time = name,
            other => panic!("{other}"),
        }
    }
    columns
}

#[test]
fn cells_with_quotes_commas_and_lines_are_read_and_lines_are_counted_in_the_file() {
    let text = "\u{feff}id,note,amount,key\r\nc1,\"a \"\"b\"\",\r\nand\nmore\",10.50,k1\r\n\
                \"c,2\",, 7 ,\r\nc3,x,1,k3\r\n\r\n";
    let read = export(Format::Csv, text, columns(&[("amount", "amount"), ("key", "key")]));
    let expected = [
        charge(2, "c1", Some("k1"), Some("10.5")),
        charge(5, "c,2", None, Some("7")),
        charge(6, "c3", Some("k3"), Some("1")),
    ];
    assert_eq!(read.expect("valid"), expected);
}

#[test]
fn lines_of_json_are_read_by_members_and_pointers_with_exact_numbers() {
    let text = "{\"id\":\"c1\",\"charge\":{\"amount\":9007199254740993.10}}\n\n\
                {\"id\":7,\"charge\":{\"amount\":\"1\"},\"key\":null}\n";
    let read =
        export(Format::Jsonl, text, columns(&[("amount", "/charge/amount"), ("key", "key")]));
    let first = charge(1, "c1", None, Some("9007199254740993.1"));
    assert_eq!(read.expect("valid"), [first, charge(3, "7", None, Some("1"))]);
}

#[test]
fn a_row_that_cannot_be_read_is_an_error_with_its_line() {
    let all = [("amount", "amount"), ("time", "at")];
    for (format, text, expected) in [
        (Format::Csv, "id,amount,at\nc1,1,2026-01-01\nc2,2\n", "line 3: 2 cells"),
        (Format::Csv, "id,amount,at\nc1,1.1.1,2026-01-01\n", "line 2: `amount`: `1.1.1`"),
        (Format::Csv, "id,amount,at\nc1,,2026-01-01\n", "line 2: `amount` is empty"),
        (Format::Csv, "id,amount,at\n,1,2026-01-01\n", "line 2: `id` is empty"),
        (Format::Csv, "id,amount,at\nc1,1,yesterday\n", "line 2: `yesterday` is not a time"),
        (
            Format::Csv,
            "id,amont,at\n",
            "line 1: there is no column `amount`; did you mean `amont`?",
        ),
        (Format::Csv, "id,id,amount,at\n", "line 1: there are two columns `id`"),
        (Format::Csv, "id,amount,at\nc1,1,\"2026-01-01\nc2,1,2026-01-01\n", "line 2: "),
        (Format::Csv, "id,amount,at,x\nc1,1,2026-01-01,\"a\nc2,1,2026-01-01,b\n", "not closed"),
        (Format::Csv, "", "line 1: there is no column"),
        (Format::Jsonl, "{\"id\":\"c1\",\"amount\":1,\"at\":1}\n{\"id\":\n", "line 2: EOF"),
        (Format::Jsonl, "[\"c1\"]\n", "line 1: not a JSON object"),
        (Format::Jsonl, "{\"id\":\"c1\",\"amount\":true,\"at\":1}\n", "line 1: `amount` is empty"),
        (Format::Jsonl, "{\"id\":\"c1\",\"amount\":1,\"at\":1}{}\n", "line 1: trailing characters"),
    ] {
        let error = export(format, text, columns(&all)).expect_err(text);
        let error = format!("{error:#}");
        assert!(error.contains(expected), "{error}\nfor {text}");
    }
    let text = b"id,amount,at\nc\xff,1,1\n";
    let export = Export { format: Format::Csv, columns: columns(&all), lookup_key: None };
    let error = export.read(&text[..], |_, _| Ok(())).expect_err("not UTF-8");
    assert_eq!(format!("{error:#}"), "line 2: not UTF-8");
}

#[test]
fn only_chosen_rows_count_and_the_others_need_not_be_whole() {
    let columns = Columns {
        only: vec![("type".to_owned(), "charge".to_owned())],
        minor_units: 2,
        ..columns(&[("amount", "amount")])
    };
    let text = "id,type,amount\nc1,charge,1050\n,fee,\nc3,charge,5\n";
    let expected = [charge(2, "c1", None, Some("10.5")), charge(4, "c3", None, Some("0.05"))];
    assert_eq!(export(Format::Csv, text, columns).expect("valid"), expected);
}

#[test]
fn times_are_understood_as_exports_have_them() {
    let noon = Timestamp::from_micros(1_767_268_800_000_000);
    for text in [
        "2026-01-01T12:00:00Z",
        "2026-01-01 12:00:00",
        "2026-01-01 12:00",
        "1767268800",
        "2026-01-01T14:00:00+02:00",
    ] {
        assert_eq!(super::moment(text).expect(text), noon, "{text}");
    }
    assert_eq!(
        super::moment("2026-01-01").expect("a day"),
        Timestamp::from_micros(1_767_225_600_000_000)
    );
    for bad in ["", "01/02/2026", "2026-1-1", "12:00", "-1", "1e9"] {
        assert!(super::moment(bad).is_err(), "{bad}");
    }
}

#[test]
fn our_own_lines_are_read_as_they_were_written_and_others_are_refused() {
    let read = |text: &str| {
        let mut read = Vec::new();
        let all = OwnFile(text.as_bytes()).read(|entry, _| {
            read.push(entry);
            Ok(())
        });
        all.map(|()| read)
    };
    let one = entry("k1", Some("c1"), Some("10.5"));
    let text = serde_json::to_string(&one).expect("JSON");
    assert_eq!(read(&format!("{text}\n\n{text}")).expect("valid"), [one.clone(), one]);
    let bare = read("{\"provider_id\":\"c1\"}\n").expect("valid");
    assert_eq!((bare[0].claim(), bare[0].generation), (Claim::Charged, 1));
    for (bad, expected) in [
        ("{\"provider_id\":\"c1\",\"amout\":\"1\"}", "line 1: unknown field `amout`"),
        ("{}\n{\"amount\":1}", "line 2: invalid type"),
        ("{\"amount\":\"1,5\"}", "line 1: not an amount"),
        ("{\"at\":\"never\"}", "line 1: `never` is not a time"),
        ("{\"state\":\"charged\"}", "line 1: unknown variant `charged`"),
        ("[]", "line 1: not a JSON object"),
    ] {
        let error = format!("{:#}", read(bad).expect_err(bad));
        assert!(error.contains(expected), "{error}\nfor {bad}");
    }
}

#[test]
fn random_ledgers_are_told_of_as_by_a_model_that_has_all_of_it_in_its_head() {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut kinds = BTreeSet::new();
    for _ in 0..400 {
        let keys = random.random_bool(0.8);
        let ours: Vec<At<Entry>> =
            (0..random.random_range(0..12)).map(|n| model::entry(&mut random, n)).collect();
        let theirs: Vec<At<Charge>> =
            (0..random.random_range(0..12)).map(|n| model::charge(&mut random, n, keys)).collect();
        let (summary, found) = checked(&ours, &theirs, keys);
        let mut found: Vec<String> = found.iter().map(model::told).collect();
        found.sort();
        assert_eq!(found, model::expected(&ours, &theirs, keys), "{ours:#?}\n{theirs:#?}");
        kinds.extend(summary.findings.into_iter().filter(|(_, n)| *n > 0).map(|(kind, _)| kind));
    }
    assert_eq!(kinds.len(), Kind::ALL.len(), "each kind was there: {kinds:?}");
}
