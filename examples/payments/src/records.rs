//! Customers and notes: rows of our own and nothing else, so that one transaction is all it takes.

use axum::{
    Json,
    extract::{Path, State},
};
use http::StatusCode;
use onceward::{Operation, Reply};
use serde::Deserialize;
use serde_json::json;

use crate::{
    edges::{Edge, reach},
    failed::Failed,
    service::App,
    tables::Tables,
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Customer {
    email: String,
}

/// `POST /customers`, declared `local`: the row and the reply are one commit.
pub(crate) async fn create_customer<D: Tables>(
    State(app): State<App<D>>,
    operation: Operation,
    Json(customer): Json<Customer>,
) -> Result<Reply, Failed> {
    reach(Edge::AfterReserve);
    let id = operation.derived_key("customer");
    let created = operation.transaction(&app.pool, async |tx| {
        if !D::insert_customer(tx, &id, &customer.email).await? {
            return Err(Failed::CustomerExists);
        }
        reach(Edge::InComplete);
        let customer = json!({ "id": id, "email": customer.email });
        Ok(Reply::json(StatusCode::CREATED, &customer)?)
    });
    let created = created.await?;
    reach(Edge::AfterComplete);
    Ok(created)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Note {
    text: String,
}

/// `POST /payments/{id}/notes`, declared `single`: the reserve is in that commit, too.
pub(crate) async fn create_note<D: Tables>(
    State(app): State<App<D>>,
    operation: Operation,
    Path(payment): Path<String>,
    Json(note): Json<Note>,
) -> Result<Reply, Failed> {
    let created = operation.transaction(&app.pool, async |tx| {
        if D::payment(tx, &payment).await?.is_none() {
            return Err(Failed::NotFound);
        }
        // Its key is reserved in this transaction.
        reach(Edge::AfterReserve);
        D::insert_note(tx, &payment, &note.text).await?;
        reach(Edge::InComplete);
        let note = json!({ "payment": payment, "text": note.text });
        Ok(Reply::json(StatusCode::CREATED, &note)?)
    });
    let created = created.await?;
    reach(Edge::AfterComplete);
    Ok(created)
}
