//! A store that has lost data: whether it has, and saying that keys may run again.

use onceward::{Canary, Store, store::Regression};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{super::time::rfc3339, Problem, resolve};
use crate::admin::access::Who;

/// Says that keys may run again although the store has lost data.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AcknowledgeRequest {
    /// What was found out, for whoever reads the audit records. One line.
    #[schema(
        min_length = 1,
        max_length = 500,
        pattern = r"^[^\u0000-\u001f\u007f-\u009f]*[!-~][^\u0000-\u001f\u007f-\u009f]*$"
    )]
    pub(crate) reason: String,
}

/// Whether the store has lost data that it had acknowledged.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub(crate) struct RegressionView {
    /// Whether keys are refused for it.
    pub(crate) regressed: bool,
    /// What came after this may be lost; absent if anything may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lost_after: Option<String>,
    /// When it was found. Absent if nothing is lost that nobody has acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) found_at: Option<String>,
    /// When keys run again by themselves, or began to: nobody has acknowledged the loss. Absent once
    /// somebody has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refused_until: Option<String>,
}

impl RegressionView {
    fn of(regression: Option<Regression>) -> Self {
        RegressionView {
            regressed: false,
            lost_after: regression.and_then(|it| it.since).map(rfc3339),
            found_at: regression.map(|it| rfc3339(it.found)),
            refused_until: None,
        }
    }
}

/// What the store says now. Without its word nobody knows.
pub(super) async fn show(canary: &Canary) -> Result<RegressionView, Problem> {
    let regressed = canary.beat().await?.is_some();
    let known = canary.unacknowledged();
    let until = |it: Regression| rfc3339(it.found.plus(canary.time_limit()));
    Ok(RegressionView { regressed, refused_until: known.map(until), ..RegressionView::of(known) })
}

/// Lets keys run again, on every node within a second.
pub(super) async fn acknowledge(
    store: &dyn Store,
    canary: &Canary,
    asked: AcknowledgeRequest,
    who: &Who,
) -> Result<RegressionView, Problem> {
    let reason = resolve::because(who, &asked.reason, None)?;
    let Some(known) = store.acknowledge_regression(&reason).await? else {
        let detail = "The store has not lost data, or somebody has acknowledged it.";
        return Err(Problem::conflict("not_regressed", detail));
    };
    // This node need not wait for its next beat. If the store does not answer now, it does.
    let _ = canary.beat().await;
    Ok(RegressionView::of(Some(known)))
}
