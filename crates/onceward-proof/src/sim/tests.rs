use super::*;

#[test]
fn quick() {
    let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
    let mut faults: BTreeMap<&str, u64> = BTreeMap::new();
    let mut arrows: BTreeMap<String, u64> = BTreeMap::new();
    let (mut events, mut excused) = (0, 0);
    for seed in 0..20000 {
        let run = run_seed(seed, None);
        if let Some(v) = &run.violation {
            println!("seed {seed}: {} {:?} {}", v.invariant, v.subject, v.what);
        }
        events += run.history.len();
        excused += run.excused;
        for (k, n) in &run.faults {
            *faults.entry(k).or_default() += n;
        }
        for e in &run.history {
            match &e.what {
                What::Answered { answer, .. } => {
                    *outcomes
                        .entry(format!(
                            "{} {:?} {:?}",
                            answer.status,
                            answer.outcome(),
                            answer.code()
                        ))
                        .or_default() += 1
                }
                What::GaveUp { .. } => *outcomes.entry("gave up".into()).or_default() += 1,
                What::Moved { from, to, cause, .. } => {
                    let s = |s: &Option<crate::history::Stand>| {
                        s.as_ref().map_or("none".to_string(), |s| s.state.clone())
                    };
                    let c = format!("{cause:?}");
                    let c = c.split(' ').next().unwrap().to_string();
                    *arrows.entry(format!("{} -> {} {c}", s(from), s(to))).or_default() += 1
                }
                _ => {}
            }
        }
    }
    println!("events {events} excused {excused}\n{outcomes:#?}\n{faults:#?}\n{arrows:#?}");
}

#[test]
fn bugs_found() {
    for bug in Bug::ALL {
        let found =
            (0..3000).find_map(|seed| run_seed(seed, Some(*bug)).violation.map(|v| (seed, v)));
        match found {
            Some((seed, v)) => {
                println!("{:32} seed {seed:5} {} {}", bug.name(), v.invariant, v.what)
            }
            None => println!("{:32} NOT FOUND", bug.name()),
        }
    }
}

#[test]
fn dump() {
    let seed: u64 = std::env::var("S").unwrap().parse().unwrap();
    let run = run_seed(seed, None);
    let v = run.violation.unwrap();
    println!("{v:?}");
    let s = v.subject.unwrap();
    let mut reqs = BTreeSet::new();
    for e in &run.history {
        let j = serde_json::to_string(&e.what).unwrap();
        let mine = match &e.what {
            What::Asked { subject, request, .. } if *subject == s => {
                reqs.insert(*request);
                true
            }
            What::Answered { request, .. } | What::GaveUp { request } => reqs.contains(request),
            What::Moved { subject, .. } | What::Called { subject, .. } => *subject == s,
            What::Asked { .. } => false,
            _ => true,
        };
        if mine {
            println!(
                "{:>12} {}",
                e.at,
                j.replace("\"tenant\":\"tenant-aardvark\",\"key\":\"key-", "")
                    .chars()
                    .take(330)
                    .collect::<String>()
            );
        }
    }
}
