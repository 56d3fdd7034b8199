//! The story that the demo tells.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::support::binary;

/// Demos like the same ports, so that there is one at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is shown, in this order.
const STEPS: [&str; 9] = [
    "1. Without Onceward: an answer is lost, the client asks again, and pays twice.",
    "2. With Onceward: the same request under a key, and its retry.",
    "3. The client hangs up while the bank is still at work, then asks again.",
    "4. A double click: two requests under one key at the same time.",
    "5. A second gateway on the same file is killed right after the bank has charged.",
    "6. Somebody looks into the bank's ledger, and writes down what had happened.",
    "7. A programming error: the same key for another amount.",
    "8. A client that forgot its key.",
    "9. The gateway is stopped and started again on the same file.",
];

#[test]
fn the_demo_ends_with_0_and_every_check_was_as_it_should_be() {
    let _alone = alone();
    let output = binary().args(["demo", "--no-wait"]).output().expect("the binary runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let errors = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(0), "{text}{errors}");
    assert!(text.contains("All 27 checks in 9 steps were as they should be."), "{text}");
    assert!(!text.contains("NOT") && !text.contains('\x1b'), "{text}");
    let steps = text.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit()));
    assert_eq!(steps.collect::<Vec<_>>(), STEPS);
    // Each is checked before the next one begins.
    for pair in STEPS.windows(2) {
        let (_, after) = text.split_once(pair[0]).expect("told");
        let (step, _) = after.split_once(pair[1]).expect("told after it");
        assert!(step.contains("   ok  "), "{}: {step}", pair[0]);
    }
    assert_eq!(errors, "");
}
