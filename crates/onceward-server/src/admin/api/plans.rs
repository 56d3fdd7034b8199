//! Changing many records or messages: first a plan, bound to exactly those that were found, then its
//! application. What moved in between is skipped. Plans live in the process that made them.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::StatusCode;
use onceward::{
    OutboxStore, Store,
    clock::Timestamp,
    outbox::MessageQuery,
    record::{Fence, RecordId},
    store::{
        Resolution, Resolve,
        list::{PAGE_MAX, Query},
    },
};
use sha2::{Digest as _, Sha256};

use super::{
    Applied, PlanRequest, PlanView, Problem,
    messages::{self, Decision, Letter},
    resolve,
    types::{Action, Evidence, Skipped},
};
use crate::admin::{access::Who, time::rfc3339};

/// A plan is about at most so many records or messages.
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
    reason: String,
    evidence: Option<Evidence>,
    work: Work,
    hash: String,
}

/// What a plan is about.
enum Work {
    Records(Resolution, Vec<Bound>),
    Messages(Decision, Vec<Letter>),
}

/// A record as it was found.
struct Bound {
    id: RecordId,
    generation: u32,
    fence: Fence,
}

/// What was found for a plan.
struct Found {
    work: Work,
    /// There are more.
    more: bool,
    /// Messages of which a delivery may have acted.
    ambiguous: usize,
}

impl Plans {
    pub(super) async fn make(
        &self,
        store: &dyn Store,
        outbox: Result<&dyn OutboxStore, Problem>,
        asked: PlanRequest,
    ) -> Result<PlanView, Problem> {
        // Checked now, with any name: what cannot be audited cannot be applied.
        resolve::because(&Who("".into()), &asked.reason, asked.evidence.as_ref())?;
        let found = match (&asked.filter, &asked.messages) {
            (Some(filter), None) => {
                let resolution = resolution(asked.action, asked.evidence.as_ref())?;
                let query = filter.query()?;
                if query == Query::default() {
                    let detail = "A plan needs at least one condition in its `filter`.";
                    return Err(Problem::invalid(detail));
                }
                let (records, more) = find(store, query).await?;
                Found { work: Work::Records(resolution, records), more, ambiguous: 0 }
            }
            (None, Some(messages)) => {
                let decision = decision(asked.action, asked.evidence.as_ref())?;
                find_letters(outbox?, decision, messages.query()?).await?
            }
            _ => {
                return Err(Problem::invalid(
                    "A plan has a `filter` for records, or `messages` for dead letters of the outbox.",
                ));
            }
        };
        let hash = hash(asked.action, &asked.reason, &found.work);
        let plan = Plan {
            made: Instant::now(),
            action: asked.action,
            reason: asked.reason,
            evidence: asked.evidence,
            work: found.work,
            hash: hash.clone(),
        };
        let ids = plan.work.ids();
        // Behind a letter: on a command line a dash would make it a flag.
        let name = format!("p{}", URL_SAFE_NO_PAD.encode(rand::random::<[u8; 12]>()));
        let view = PlanView {
            plan: name.clone(),
            action: plan.action,
            messages: plan.work.is_of_messages(),
            count: u32::try_from(ids.len()).unwrap_or(u32::MAX),
            ambiguous: u32::try_from(found.ambiguous).unwrap_or(u32::MAX),
            more: found.more,
            ids,
            hash,
            expires_at: rfc3339(from_now(LIFETIME)),
        };
        self.remember(name, plan);
        Ok(view)
    }

    pub(super) async fn apply(
        &self,
        store: &dyn Store,
        outbox: Result<&dyn OutboxStore, Problem>,
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
        let mut tally = Tally::new(name, plan.work.is_of_messages());
        match plan.work {
            Work::Records(resolution, records) => {
                for Bound { id, generation, fence } in records {
                    let handle = id.handle();
                    if tally.has_given_up(&handle) {
                        continue;
                    }
                    let (resolution, reason) = (resolution.clone(), reason.clone());
                    let resolve = Resolve { id, generation, fence, resolution, reason };
                    tally.count(handle, resolve::apply(store, resolve).await.map(drop));
                }
            }
            Work::Messages(decision, letters) => {
                let outbox = outbox?;
                for letter in letters {
                    let id = letter.id.to_string();
                    if tally.has_given_up(&id) {
                        continue;
                    }
                    let applied = messages::apply(outbox, letter, decision, &reason).await;
                    tally.count(id, applied.map(drop));
                }
            }
        }
        Ok(tally.applied)
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

/// The dead letters of a filter, and whether there are more of them.
async fn find_letters(
    outbox: &dyn OutboxStore,
    decision: Decision,
    mut query: MessageQuery,
) -> Result<Found, Problem> {
    let (mut letters, mut ambiguous) = (Vec::new(), 0);
    loop {
        let page = outbox.list_messages(query.clone()).await?;
        for found in &page {
            if letters.len() >= RECORDS_MAX {
                return Ok(Found {
                    work: Work::Messages(decision, letters),
                    more: true,
                    ambiguous,
                });
            }
            letters.push(Letter { id: found.stored.message_id, fence: found.stored.fence });
            ambiguous += usize::from(found.stored.ambiguous);
        }
        if page.len() < query.limit as usize {
            return Ok(Found { work: Work::Messages(decision, letters), more: false, ambiguous });
        }
        query.after = page.last().map(|last| last.stored.message_id);
    }
}

fn resolution(action: Action, evidence: Option<&Evidence>) -> Result<Resolution, Problem> {
    match (action, evidence) {
        (Action::Void, None) => Ok(Resolution::Void),
        (Action::Redrive, None) => Ok(Resolution::Redrive),
        (Action::Redrive, Some(_)) => {
            Err(Problem::invalid("`redrive` takes no `evidence`, only a `reason`."))
        }
        (Action::Void, Some(_)) => {
            Err(Problem::invalid("`void` takes no `evidence`, only a `reason`."))
        }
        (Action::Release, Some(evidence)) => Ok(Resolution::Release(resolve::proof(evidence)?)),
        (Action::Release, None) => {
            Err(Problem::invalid("`release` needs `evidence` that none of them acted."))
        }
        (Action::Discard, _) => Err(Problem::invalid(
            "A record is not discarded: its client may ask again, and must be told what happened. \
             Resolve or release it.",
        )),
    }
}

fn decision(action: Action, evidence: Option<&Evidence>) -> Result<Decision, Problem> {
    match (action, evidence) {
        (Action::Redrive, None) => Ok(Decision::Redrive),
        (Action::Discard, None) => Ok(Decision::Discard),
        (Action::Redrive | Action::Discard, Some(_)) => {
            Err(Problem::invalid("Messages take no `evidence`, only a `reason`."))
        }
        (Action::Release | Action::Void, _) => {
            Err(Problem::invalid("Messages are redriven or discarded."))
        }
    }
}

impl Work {
    fn is_of_messages(&self) -> bool {
        matches!(self, Work::Messages(..))
    }

    fn ids(&self) -> Vec<String> {
        match self {
            Work::Records(_, records) => records.iter().map(|bound| bound.id.handle()).collect(),
            Work::Messages(_, letters) => letters.iter().map(|it| it.id.to_string()).collect(),
        }
    }
}

/// What has come of a plan so far.
struct Tally {
    applied: Applied,
    failures_in_a_row: u32,
}

impl Tally {
    fn new(plan: &str, messages: bool) -> Tally {
        let (skipped, failed) = (Vec::new(), Vec::new());
        let applied = Applied { plan: plan.to_owned(), messages, applied: 0, skipped, failed };
        Tally { applied, failures_in_a_row: 0 }
    }

    /// Whether this one is not tried any more, which is then noted.
    fn has_given_up(&mut self, id: &str) -> bool {
        let given_up = self.failures_in_a_row >= FAILURES_MAX;
        if given_up {
            self.applied.failed.push(Skipped { id: id.to_owned(), code: "not_tried".to_owned() });
        }
        given_up
    }

    fn count(&mut self, id: String, done: Result<(), Problem>) {
        let Err(problem) = done else {
            self.applied.applied += 1;
            self.failures_in_a_row = 0;
            return;
        };
        let it = Skipped { id, code: problem.code().to_owned() };
        if problem.status == StatusCode::SERVICE_UNAVAILABLE {
            self.failures_in_a_row += 1;
            self.applied.failed.push(it);
        } else {
            self.failures_in_a_row = 0;
            self.applied.skipped.push(it);
        }
    }
}

fn hash(action: Action, reason: &str, work: &Work) -> String {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    part(action.name().as_bytes());
    part(reason.as_bytes());
    match work {
        Work::Records(_, records) => {
            for Bound { id, generation, fence } in records {
                part(id.handle().as_bytes());
                part(&generation.to_be_bytes());
                part(&fence.number().to_be_bytes());
            }
        }
        Work::Messages(_, letters) => {
            part(b"messages");
            for Letter { id, fence } in letters {
                part(&id.number().to_be_bytes());
                part(&fence.number().to_be_bytes());
            }
        }
    }
    URL_SAFE_NO_PAD.encode(hash.finalize())
}

fn from_now(duration: Duration) -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(0).plus(now).plus(duration)
}
