//! The story that the demo tells.

use crate::support::binary;

#[test]
fn the_demo_ends_with_0_and_every_check_was_as_it_should_be() {
    let output = binary().args(["demo", "--no-wait"]).output().expect("the binary runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let errors = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(0), "{text}{errors}");
    assert!(text.contains("All 19 checks in 7 steps were as they should be."), "{text}");
    assert!(!text.contains("NOT") && !text.contains('\x1b'), "{text}");
}
