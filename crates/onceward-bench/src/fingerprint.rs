//! What a fingerprint costs beside parsing the same body with serde_json.
//!
//! Each figure is the best of many rounds; the rounds of all rows are interleaved, so that
//! a busy moment of the machine does not fall on one row only.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use http::Request;
use http::request::Parts;
use onceward::fingerprint::{FingerprintKey, Recipe};
use serde::{Serialize, de::IgnoredAny};
use sha2::{Digest, Sha256};

use crate::{chart::Bar, report::Finding};

const ROUNDS: usize = 60;
const ROUND_TIME: Duration = Duration::from_millis(4);

/// A payment with `lines` order lines, as clients send it: members in the
/// order of the code that wrote them.
fn payment(lines: usize, pretty: bool) -> Vec<u8> {
    let mut body = String::from(
        "{\"amount\":1299.50,\"currency\":\"EUR\",\"customer\":{\"name\":\"Zo\u{eb} M\u{fc}ller\",\
         \"id\":\"cus_8f14e45f\"},\"capture\":true,\"reference\":\"INV-2026-0042\",\
         \"metadata\":{\"source\":\"web\",\"cart\":98231},\"installments\":null",
    );
    if lines > 0 {
        body.push_str(",\"lines\":[");
        for line in 0..lines {
            let comma = if line == 0 { "" } else { "," };
            let (price, tax) = (line * 37 % 900 + 1, line * 7 % 100);
            let _ = write!(
                body,
                "{comma}{{\"sku\":\"SKU-{line:05}-EU\",\"quantity\":{quantity},\
                 \"unit_price\":{price}.{tax:02},\"title\":\"Caf\u{e9} cup, hand made, no. {line}\",\
                 \"tax\":{{\"rate\":0.19,\"included\":true}},\
                 \"note\":\"gift \\\"wrapped\\\"\\n\",\"discounts\":[]}}",
                quantity = line % 9 + 1,
            );
        }
        body.push(']');
    }
    body.push('}');
    if pretty {
        let value: serde_json::Value = serde_json::from_str(&body).expect("the body is JSON");
        body = serde_json::to_string_pretty(&value).expect("the body is JSON");
    }
    body.into_bytes()
}

fn request() -> Parts {
    let request = Request::post("/v1/payments?expand=customer")
        .header("content-type", "application/json")
        .header("authorization", "Bearer 0123456789")
        .header("idempotency-key", "0c6b2f9e-7f52-4e6e-93b5-5b8a3c1f0d11");
    let (parts, ()) = request.body(()).expect("a valid request").into_parts();
    parts
}

/// One thing to time.
type Row<'a> = (&'static str, Box<dyn Fn() + 'a>);

/// Nanoseconds of one call for each row: the best of all rounds.
fn best(rows: &[Row<'_>]) -> Vec<f64> {
    let mut best = vec![f64::INFINITY; rows.len()];
    for _ in 0..ROUNDS {
        for ((_, work), best) in rows.iter().zip(&mut best) {
            let (start, mut calls) = (Instant::now(), 0_u32);
            while start.elapsed() < ROUND_TIME {
                for _ in 0..16 {
                    work();
                }
                calls += 16;
            }
            let each = start.elapsed().as_nanos() as f64 / f64::from(calls);
            *best = best.min(each);
        }
    }
    best
}

/// What was timed on one body.
#[derive(Serialize)]
pub(crate) struct Timed {
    title: &'static str,
    bytes: usize,
    /// Nanoseconds of each, the best of all rounds.
    rows: Vec<(&'static str, f64)>,
}

fn compare(title: &'static str, body: &[u8]) -> Timed {
    let parts = request();
    let canonical = Recipe::canonical();
    let raw = Recipe::raw();
    let key = FingerprintKey::new(&[7; 32]).expect("long enough");
    let keyed = Recipe::canonical().keyed(key);
    let excluding = Recipe::canonical().exclude(&["/metadata", "/lines/0/note"]);
    let excluding = excluding.expect("pointers are well formed");
    let sha = || black_box(Sha256::digest(black_box(body)));

    let rows: Vec<Row<'_>> = vec![
        (
            "serde_json Value + sha256",
            Box::new(|| {
                let value: Result<serde_json::Value, _> = serde_json::from_slice(black_box(body));
                let _ = black_box(value);
                sha();
            }),
        ),
        (
            "serde_json IgnoredAny + sha256",
            Box::new(|| {
                let value: Result<IgnoredAny, _> = serde_json::from_slice(black_box(body));
                let _ = black_box(value);
                sha();
            }),
        ),
        (
            "sha256",
            Box::new(|| {
                sha();
            }),
        ),
        (
            "fingerprint, canonical",
            Box::new(|| {
                black_box(canonical.fingerprint(black_box(&parts), black_box(body)));
            }),
        ),
        (
            "fingerprint, canonical, excluding",
            Box::new(|| {
                black_box(excluding.fingerprint(black_box(&parts), black_box(body)));
            }),
        ),
        (
            "fingerprint, canonical, keyed",
            Box::new(|| {
                black_box(keyed.fingerprint(black_box(&parts), black_box(body)));
            }),
        ),
        (
            "fingerprint, raw",
            Box::new(|| {
                black_box(raw.fingerprint(black_box(&parts), black_box(body)));
            }),
        ),
    ];
    let times = best(&rows);
    let rows = rows.iter().zip(times).map(|((name, _), time)| (*name, time)).collect();
    Timed { title, bytes: body.len(), rows }
}

pub(crate) fn run() -> Vec<Timed> {
    vec![
        compare("small", &payment(0, false)),
        compare("large", &payment(55, false)),
        compare("large, indented, sorted", &payment(31, true)),
    ]
}

impl Timed {
    /// Each also by those that are first.
    fn print(&self) {
        let [(_, value), (_, ignored), (_, sha), ..] = self.rows[..] else { return };
        println!("\n{}, {} bytes", self.title, self.bytes);
        println!("{:<36}{:>10}{:>10}{:>14}{:>10}", "", "ns", "/ Value", "/ IgnoredAny", "/ sha256");
        for (name, time) in &self.rows {
            println!(
                "{name:<36}{time:>10.0}{:>10.2}{:>14.2}{:>10.2}",
                time / value,
                time / ignored,
                time / sha
            );
        }
    }
}

impl Finding for Vec<Timed> {
    fn print(&self) {
        self.iter().for_each(Timed::print);
    }

    fn json(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(self)
    }

    fn bars(&self) -> Vec<Bar> {
        Vec::new()
    }
}
