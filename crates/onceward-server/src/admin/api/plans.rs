//! Changing many records: first a plan, bound to exactly the records that were found, then its
//! application. What moved in between is skipped. Plans live in the process that made them.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::StatusCode;
use onceward::{
    Store,
    clock::Timestamp,
    record::{Fence, RecordId},
    store::{
        Resolution, Resolve,
        list::{PAGE_MAX, Query},
    },
};
use sha2::{Digest as _, Sha256};

use super::{
    Applied, PlanRequest, PlanView, Problem, resolve,
    types::{Action, Skipped},
};
use crate::admin::{access::Who, time::rfc3339};

/// A plan is about at most so many records.
const RECORDS_MAX: usize = 5_000;

/// So many plans are remembered; the oldest is forgotten first.
const PLANS_MAX: usize = 100;

/// After so many failures of the store in a row, the rest of a plan is not tried.
const FAILURES_MAX: u32 = 3;

/// A plan can be applied for so long.
const LIFETIME: Duration = Duration::from_secs(15 * 60);

/// The plans that were made and not yet applied.
#[derive(Default)]
pub(super) struct Plans(Mutex<BTreeMap<String, Plan>>);

struct Plan {
    made: Instant,
    action: Action,
    resolution: Resolution,
    reason: String,
    evidence: Option<super::types::Evidence>,
    records: Vec<Bound>,
    hash: String,
}

/// A record as it was found.
struct Bound {
    id: RecordId,
    generation: u32,
    fence: Fence,
}

impl Plans {
    pub(super) async fn make(
        &self,
        store: &dyn Store,
        asked: PlanRequest,
    ) -> Result<PlanView, Problem> {
        // Checked now, with any name: what cannot be audited cannot be applied.
        resolve::because(&Who("".into()), &asked.reason, asked.evidence.as_ref())?;
        let resolution = match (asked.action, &asked.evidence) {
            (Action::Void, None) => Resolution::Void,
            (Action::Redrive, None) => Resolution::Redrive,
            (Action::Redrive, Some(_)) => {
                return Err(Problem::invalid("`redrive` takes no `evidence`, only a `reason`."));
            }
            (Action::Void, Some(_)) => {
                return Err(Problem::invalid("`void` takes no `evidence`, only a `reason`."));
            }
            (Action::Release, Some(evidence)) => Resolution::Release(resolve::proof(evidence)?),
            (Action::Release, None) => {
                return Err(Problem::invalid(
                    "`release` needs `evidence` that none of them acted.",
                ));
            }
        };
        let query = asked.filter.query()?;
        if query == Query::default() {
            return Err(Problem::invalid("A plan needs at least one condition in its `filter`."));
        }
        let (records, more) = find(store, query).await?;
        let hash = hash(asked.action, &asked.reason, &records);
        let plan = Plan {
            made: Instant::now(),
            action: asked.action,
            resolution,
            reason: asked.reason,
            evidence: asked.evidence,
            records,
            hash: hash.clone(),
        };
        // Behind a letter: on a command line a dash would make it a flag.
        let name = format!("p{}", URL_SAFE_NO_PAD.encode(rand::random::<[u8; 12]>()));
        let view = PlanView {
            plan: name.clone(),
            action: plan.action,
            count: u32::try_from(plan.records.len()).unwrap_or(u32::MAX),
            more,
            ids: plan.records.iter().map(|bound| bound.id.handle()).collect(),
            hash,
            expires_at: rfc3339(from_now(LIFETIME)),
        };
        self.remember(name, plan);
        Ok(view)
    }

    pub(super) async fn apply(
        &self,
        store: &dyn Store,
        name: &str,
        hash: &str,
        who: &Who,
    ) -> Result<Applied, Problem> {
        let plan = self.take(name, hash)?;
        let reason = format!("{} (plan {name}, {})", plan.reason, plan.action.name());
        let reason: Box<str> = match &plan.evidence {
            None => format!("{}: {reason}", who.0).into(),
            Some(evidence) => format!("{}: {reason}; evidence: {}", who.0, evidence.source).into(),
        };
        let (skipped, failed) = (Vec::new(), Vec::new());
        let mut applied = Applied { plan: name.to_owned(), applied: 0, skipped, failed };
        let mut in_a_row = 0;
        for Bound { id, generation, fence } in plan.records {
            let handle = id.handle();
            if in_a_row >= FAILURES_MAX {
                applied.failed.push(Skipped { id: handle, code: "not_tried".to_owned() });
                continue;
            }
            let resolution = plan.resolution.clone();
            let reason = reason.clone();
            match resolve::apply(store, Resolve { id, generation, fence, resolution, reason }).await
            {
                Ok(_) => {
                    applied.applied += 1;
                    in_a_row = 0;
                }
                Err(problem) => {
                    let it = Skipped { id: handle, code: problem.code().to_owned() };
                    let of_the_store = problem.status == StatusCode::SERVICE_UNAVAILABLE;
                    in_a_row = if of_the_store { in_a_row + 1 } else { 0 };
                    let list =
                        if of_the_store { &mut applied.failed } else { &mut applied.skipped };
                    list.push(it);
                }
            }
        }
        Ok(applied)
    }

    fn remember(&self, name: String, plan: Plan) {
        let mut plans = self.lock();
        plans.retain(|_, plan| plan.made.elapsed() < LIFETIME);
        while plans.len() >= PLANS_MAX {
            let oldest = plans.iter().min_by_key(|(_, plan)| plan.made);
            let Some(oldest) = oldest.map(|(name, _)| name.clone()) else { break };
            plans.remove(&oldest);
        }
        plans.insert(name, plan);
    }

    /// A plan is applied once.
    fn take(&self, name: &str, hash: &str) -> Result<Plan, Problem> {
        let mut plans = self.lock();
        let known = plans.get(name).filter(|plan| plan.made.elapsed() < LIFETIME);
        let Some(known) = known else {
            return Err(Problem::not_found(
                "There is no such plan here: it was applied, it is too old, or another server made \
                 it. Make a new one.",
            ));
        };
        if known.hash != hash {
            let detail = "The hash is that of another plan. Look at this one before applying it.";
            return Err(Problem::conflict("other_plan", detail));
        }
        plans.remove(name).ok_or_else(|| Problem::not_found("There is no such plan here."))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Plan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The records of a filter, and whether there are more of them.
async fn find(store: &dyn Store, query: Query) -> Result<(Vec<Bound>, bool), Problem> {
    let mut query = Query { limit: PAGE_MAX, ..query };
    let mut records = Vec::new();
    loop {
        let page = store.list_records(query.clone()).await?;
        records.extend(page.records.into_iter().map(|record| Bound {
            id: record.id,
            generation: record.generation,
            fence: record.fence,
        }));
        let Some(next) = page.next else { return Ok((records, false)) };
        if records.len() >= RECORDS_MAX {
            records.truncate(RECORDS_MAX);
            return Ok((records, true));
        }
        query.after = Some(next);
    }
}

fn hash(action: Action, reason: &str, records: &[Bound]) -> String {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    part(action.name().as_bytes());
    part(reason.as_bytes());
    for Bound { id, generation, fence } in records {
        part(id.handle().as_bytes());
        part(&generation.to_be_bytes());
        part(&fence.number().to_be_bytes());
    }
    URL_SAFE_NO_PAD.encode(hash.finalize())
}

fn from_now(duration: Duration) -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(0).plus(now).plus(duration)
}
