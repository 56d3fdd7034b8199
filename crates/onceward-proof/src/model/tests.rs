//! The model holds, and finds what is wrong with it when something is.

use std::fmt;

use super::{
    explore::{Step, System},
    *,
};

#[test]
fn the_protocol_holds_in_every_state_of_the_small_worlds() {
    for world in SMALL {
        let explored = explore(*world, None);
        println!("{}: {} states in {:.1?}", world.name, explored.states, explored.took);
        if let Some(counterexample) = explored.counterexample {
            panic!("{}: {counterexample}", world.name);
        }
    }
}
