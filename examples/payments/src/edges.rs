//! Where tests let the process die: `PAYMENTS_DIE_AT` names an edge. The process dies there the first
//! time it comes by; the file `PAYMENTS_DIE_MARKER` remembers that it did.

use std::{
    env,
    fs::File,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// Every edge of a payment, in the order of its steps. Customers and notes have those that do not depend on
/// the bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edge {
    BeforeReserve,
    AfterReserve,
    InFirstPhase,
    AfterFirstPhase,
    BeforeBank,
    AfterBank,
    BeforeComplete,
    InComplete,
    AfterComplete,
}

impl Edge {
    fn name(self) -> &'static str {
        match self {
            Edge::BeforeReserve => "before_reserve",
            Edge::AfterReserve => "after_reserve",
            Edge::InFirstPhase => "in_first_phase",
            Edge::AfterFirstPhase => "after_first_phase",
            Edge::BeforeBank => "before_bank",
            Edge::AfterBank => "after_bank",
            Edge::BeforeComplete => "before_complete",
            Edge::InComplete => "in_complete",
            Edge::AfterComplete => "after_complete",
        }
    }
}

struct Plan {
    edge: String,
    marker: PathBuf,
}

/// Says that the process is at this edge.
pub(crate) fn reach(edge: Edge) {
    static PLAN: OnceLock<Option<Plan>> = OnceLock::new();
    let plan = PLAN.get_or_init(|| {
        let edge = env::var("PAYMENTS_DIE_AT").ok()?;
        Some(Plan { edge, marker: env::var_os("PAYMENTS_DIE_MARKER")?.into() })
    });
    if let Some(plan) = plan
        && plan.edge == edge.name()
        && is_first(&plan.marker)
    {
        std::process::abort();
    }
}

fn is_first(marker: &Path) -> bool {
    File::create_new(marker).is_ok()
}
