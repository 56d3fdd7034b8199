//! A ledger check of more rows than it keeps in memory.

use std::{
    fs::File,
    io::{BufWriter, Read as _, Write as _},
    process::Stdio,
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::support::{binary, memory_of};

const FEW: u32 = 1_000;

/// With all that stands in them, 25 MiB.
const MANY: u32 = 100_000;

/// Less than half of that. What one part of the comparison takes is a hundredth.
const MORE_MAX: u64 = 10 << 10;

/// Checks so many charges that both sides have. The export comes by a pipe, row by row. With the most
/// memory that the process had, in KiB, and its summary.
fn check(rows: u32) -> (u64, Value) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("ours.jsonl");
    let mut ours = BufWriter::new(File::create(&path).expect("a file"));
    for row in 0..rows {
        writeln!(ours, r#"{{"provider_id":"charge_{row}","amount":"10.5"}}"#).expect("written");
    }
    drop(ours);
    let mut command = binary();
    command.args(["ledger", "check", "-o", "json", "--export", "-", "--format", "csv"]);
    command.args(["--amount-column", "amount", "--ours"]).arg(&path);
    command.arg("--temp-dir").arg(folder.path());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut export = BufWriter::new(child.stdin.take().expect("piped"));
    let feeding = thread::spawn(move || {
        let note = "what nobody compares ".repeat(11);
        writeln!(export, "id,amount,note").expect("taken");
        for row in 0..rows {
            writeln!(export, "charge_{row},10.50,\"{note}\"").expect("taken");
        }
    });
    let mut most = 0;
    let ended = loop {
        most = most.max(memory_of(child.id(), "VmHWM:").unwrap_or_default());
        if let Some(ended) = child.try_wait().expect("waited") {
            break ended;
        }
        thread::sleep(Duration::from_millis(2));
    };
    feeding.join().expect("all of it was read");
    let mut said = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut said).expect("text");
    assert!(ended.success(), "{said}");
    let said: Value = serde_json::from_str(&said).expect("a summary, and no findings");
    (most, said["summary"].clone())
}

#[test]
fn a_check_of_many_rows_takes_hardly_more_memory_than_one_of_a_few() {
    let (few, _) = check(FEW);
    let (many, summary) = check(MANY);
    println!("VmHWM of {FEW} rows {few} KiB, of {MANY} rows {many} KiB");
    for count in ["charges", "entries", "matched"] {
        assert_eq!(summary[count], MANY, "{count}: {summary}");
    }
    assert_eq!(summary["agree"], true, "{summary}");
    assert!(few > 0 && many < few + MORE_MAX, "{few} KiB, and then {many} KiB");
}
