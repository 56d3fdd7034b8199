//! Erasing what was sealed for a scope: its data keys are dropped.

use onceward::{
    Scope, Store,
    record::State,
    store::{
        ScopeKey,
        list::{PAGE_MAX, Query},
    },
};
use sha2::{Digest as _, Sha256};

use super::{
    Problem, resolve,
    types::{ErasureRequest, ErasureView},
};
use crate::admin::access::Who;

/// Plans, or erases if the plan that was looked at still holds.
pub(super) async fn erase(
    store: &dyn Store,
    asked: ErasureRequest,
    who: &Who,
) -> Result<ErasureView, Problem> {
    let reason = resolve::because(who, &asked.reason, None)?;
    let not_one = |_| Problem::invalid("`scope` is not the name of a scope.");
    let scope = Scope::new(asked.scope.as_str()).map_err(not_one)?;
    let keys = store.scope_keys(&scope, None).await?;
    let standing: Vec<&ScopeKey> = keys.iter().filter(|key| key.stands()).collect();
    let query = Query { scope: Some(scope.clone()), limit: PAGE_MAX, ..Query::default() };
    let open = State::ALL.into_iter().filter(|state| !state.is_terminal()).collect();
    let open = store.list_records(Query { states: open, ..query.clone() }).await?;
    let page = store.list_records(query).await?;
    let hash = hash(&scope, &standing);
    let mut view = ErasureView {
        scope: asked.scope,
        applied: false,
        data_keys: number(standing.len()),
        records: number(page.records.len()),
        at_work: number(open.records.len()),
        hash,
    };
    let Some(expected) = asked.hash else { return Ok(view) };
    if expected != view.hash {
        let detail = "The scope has other data keys than those that were looked at. Look again.";
        return Err(Problem::conflict("plan_changed", detail));
    }
    view.data_keys = store.drop_scope_keys(&scope, &reason).await?;
    view.applied = true;
    Ok(view)
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn hash(scope: &Scope, standing: &[&ScopeKey]) -> String {
    let mut hash = Sha256::new();
    hash.update(scope.as_str());
    standing.iter().for_each(|key| hash.update(key.id));
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
