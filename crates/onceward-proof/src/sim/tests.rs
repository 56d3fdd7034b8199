use super::*;

#[test]
fn quick() {
    let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
    let mut faults: BTreeMap<&str, u64> = BTreeMap::new();
    let mut arrows: BTreeMap<String, u64> = BTreeMap::new();
    let (mut events, mut excused) = (0, 0);
    for seed in 0..2000 {
        let run = run_seed(seed, None);
        if let Some(v) = &run.violation {
            println!("seed {seed}: {} {:?} {}", v.invariant, v.subject, v.what);
        }
        events += run.history.len();
        excused += run.excused;
        for (k, n) in &run.faults { *faults.entry(k).or_default() += n; }
        for e in &run.history {
            match &e.what {
                What::Answered { answer, .. } => *outcomes.entry(format!("{} {:?} {:?}", answer.status, answer.outcome(), answer.code())).or_default() += 1,
                What::GaveUp { .. } => *outcomes.entry("gave up".into()).or_default() += 1,
                What::Moved { from, to, cause, .. } => {
                    let s = |s: &Option<crate::history::Stand>| s.as_ref().map_or("none".to_string(), |s| s.state.clone());
                    let c = format!("{cause:?}"); let c = c.split(' ').next().unwrap().to_string();
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
        let found = (0..3000).find_map(|seed| run_seed(seed, Some(*bug)).violation.map(|v| (seed, v)));
        match found {
            Some((seed, v)) => println!("{:32} seed {seed:5} {} {}", bug.name(), v.invariant, v.what),
            None => println!("{:32} NOT FOUND", bug.name()),
        }
    }
}
