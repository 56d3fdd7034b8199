//! Payments: steps here, calls to the bank in between.
//!
//! ```text
//! phase         the payment's row, and a message about it
//! effect        the bank, with a key that is the same for every attempt
//! transaction   the payment's new state, a message about it, and the reply
//! ```
//!
//! An attempt that goes on after another one was cut off gets the results of the steps that are done,
//! so nothing here may depend on chance or time outside of a step. Ids are derived keys.

use axum::{
    Json,
    extract::{Path, State},
};
use http::StatusCode;
use onceward::{Message, Operation, Reply};
use serde::Deserialize;
use serde_json::json;

use crate::{
    bank::Verdict,
    edges::{Edge, reach},
    failed::Failed,
    service::App,
    tables::{Payment, Tables},
};

/// What is to be paid.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Order {
    reference: String,
    amount: i64,
}

/// `POST /payments`
pub(crate) async fn create<D: Tables>(
    State(app): State<App<D>>,
    operation: Operation,
    Json(order): Json<Order>,
) -> Result<Reply, Failed> {
    reach(Edge::AfterReserve);
    if order.amount <= 0 {
        return Err(Failed::Amount);
    }
    let payment = Payment {
        id: operation.derived_key("payment"),
        reference: order.reference,
        amount: order.amount,
        state: "pending".to_owned(),
        bank_reference: None,
    };
    let written = operation.phase(&app.pool, "pending", async |tx| {
        D::insert_payment(tx, &payment).await?;
        operation.stage(tx, about("payment.created", &payment)?).await?;
        reach(Edge::InFirstPhase);
        Ok::<(), Failed>(())
    });
    written.await?;
    reach(Edge::AfterFirstPhase);

    let step = Step { name: "authorize", path: "/authorizations", done: "authorized" };
    finish(&app, &operation, payment, step, "declined").await
}

/// `POST /payments/{id}/capture`
pub(crate) async fn capture<D: Tables>(
    State(app): State<App<D>>,
    operation: Operation,
    Path(id): Path<String>,
) -> Result<Reply, Failed> {
    let step = Step { name: "capture", path: "/captures", done: "captured" };
    change(&app, &operation, &id, ["authorized", "capturing"], step).await
}

/// `POST /payments/{id}/refund`
pub(crate) async fn refund<D: Tables>(
    State(app): State<App<D>>,
    operation: Operation,
    Path(id): Path<String>,
) -> Result<Reply, Failed> {
    let step = Step { name: "refund", path: "/refunds", done: "refunded" };
    change(&app, &operation, &id, ["captured", "refunding"], step).await
}

/// `GET /payments/{id}`
pub(crate) async fn show<D: Tables>(
    State(app): State<App<D>>,
    Path(id): Path<String>,
) -> Result<Json<Payment>, Failed> {
    let mut connection = app.pool.acquire().await?;
    let payment = D::payment(&mut connection, &id).await?;
    payment.map(Json).ok_or(Failed::NotFound)
}

/// What the bank is asked, and what the payment is afterwards.
#[derive(Clone, Copy)]
struct Step {
    name: &'static str,
    path: &'static str,
    done: &'static str,
}

/// Something is done with a payment that exists: only one operation gets it out of the state that it
/// has to be in.
async fn change<D: Tables>(
    app: &App<D>,
    operation: &Operation,
    id: &str,
    [from, meanwhile]: [&str; 2],
    step: Step,
) -> Result<Reply, Failed> {
    reach(Edge::AfterReserve);
    let taken = operation.phase(&app.pool, meanwhile, async |tx| {
        let payment = D::payment(tx, id).await?.ok_or(Failed::NotFound)?;
        if !D::move_payment(tx, id, from, meanwhile).await? {
            return Err(Failed::WrongState(payment.state));
        }
        reach(Edge::InFirstPhase);
        Ok(Payment { state: meanwhile.to_owned(), ..payment })
    });
    let payment: Payment = taken.await?;
    reach(Edge::AfterFirstPhase);
    finish(app, operation, payment, step, from).await
}

/// Asks the bank, and writes what it said together with the reply.
async fn finish<D: Tables>(
    app: &App<D>,
    operation: &Operation,
    mut payment: Payment,
    step: Step,
    when_declined: &str,
) -> Result<Reply, Failed> {
    let asked = operation.effect(app.bank.effect(step.name), async |key| {
        reach(Edge::BeforeBank);
        let verdict = app.bank.call(step.path, &key, &payment).await;
        reach(Edge::AfterBank);
        verdict
    });
    let verdict = asked.await?;
    reach(Edge::BeforeComplete);

    let before = payment.state.clone();
    let (status, state) = match &verdict {
        Verdict::Done { .. } if step.name == "authorize" => (StatusCode::CREATED, step.done),
        Verdict::Done { .. } => (StatusCode::OK, step.done),
        Verdict::Declined => (StatusCode::PAYMENT_REQUIRED, when_declined),
    };
    payment.state = state.to_owned();
    if let Verdict::Done { id } = verdict {
        payment.bank_reference = Some(id);
    }
    let completed = operation.transaction(&app.pool, async |tx| {
        if !D::move_payment(tx, &payment.id, &before, state).await? {
            // The bank has acted, so that this must not become the reply.
            return Err(Failed::Interrupted("somebody else moved the payment".to_owned()));
        }
        if let Some(bank_reference) = &payment.bank_reference {
            D::name_at_bank(tx, &payment.id, bank_reference).await?;
        }
        operation.stage(tx, about(&format!("payment.{state}"), &payment)?).await?;
        reach(Edge::InComplete);
        Ok(Reply::json(status, &payment)?)
    });
    let reply = completed.await?;
    reach(Edge::AfterComplete);
    Ok(reply)
}

/// A message for whoever wants to know. Those about one payment arrive in order.
fn about(event: &str, payment: &Payment) -> Result<Message, serde_json::Error> {
    let payload = json!({
        "event": event,
        "payment": payment.id,
        "reference": payment.reference,
        "amount": payment.amount,
    });
    Ok(Message::json(event, crate::service::NOTIFY, &payload)?.aggregate(payment.id.clone()))
}
