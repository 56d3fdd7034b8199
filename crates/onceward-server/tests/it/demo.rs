//! The story that the demo tells.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::support::binary;

/// Demos like the same ports, so that there is one at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn the_demo_ends_with_0_and_every_check_was_as_it_should_be() {
    let _alone = alone();
    let output = binary().args(["demo", "--no-wait"]).output().expect("the binary runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let errors = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(0), "{text}{errors}");
    assert!(text.contains("All 27 checks in 9 steps were as they should be."), "{text}");
    assert!(!text.contains("NOT") && !text.contains('\x1b'), "{text}");
    assert_eq!(errors, "");
}
