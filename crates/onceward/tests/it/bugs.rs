//! Deliberate bugs in what stores send to their servers, and the cases of the suite that find them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use onceward::{
    clock::ManualClock,
    testing::{self, Fresh, Harness},
};

/// Makes a store, with a bug or without.
pub(crate) type Make<B, Made> = fn(ManualClock, Option<B>) -> Made;

/// The case fails on a store with the bug, and on no other.
pub(crate) fn found_by<B, Made, Ran>(make: Make<B, Made>, bug: B, case: impl Fn(Harness) -> Ran)
where
    B: Copy + 'static,
    Made: Future<Output: Into<Fresh>> + 'static,
    Ran: Future<Output = ()>,
{
    testing::run(move |clock| make(clock, None), &case);
    can_be_made(make, bug);
    assert!(fails(make, bug, &case), "the case does not see the bug");
}

/// The same for a bug that shows only when two calls meet. One try in six was seen to miss it.
pub(crate) fn found_in_a_race_by<B, Made, Ran>(
    make: Make<B, Made>,
    bug: B,
    case: impl Fn(Harness) -> Ran,
) where
    B: Copy + 'static,
    Made: Future<Output: Into<Fresh>> + 'static,
    Ran: Future<Output = ()>,
{
    testing::run(move |clock| make(clock, None), &case);
    can_be_made(make, bug);
    assert!((0..20).any(|_| fails(make, bug, &case)), "the case never sees the bug");
}

/// A bug that cannot be put in is not one that was found.
fn can_be_made<B, Made>(make: Make<B, Made>, bug: B)
where
    B: Copy + 'static,
    Made: Future<Output: Into<Fresh>> + 'static,
{
    testing::run(move |clock| make(clock, Some(bug)), |_| async {});
}

fn fails<B, Made, Ran>(make: Make<B, Made>, bug: B, case: &impl Fn(Harness) -> Ran) -> bool
where
    B: Copy + 'static,
    Made: Future<Output: Into<Fresh>> + 'static,
    Ran: Future<Output = ()>,
{
    let on_a_broken_one = || testing::run(move |clock| make(clock, Some(bug)), case);
    catch_unwind(AssertUnwindSafe(on_a_broken_one)).is_err()
}
